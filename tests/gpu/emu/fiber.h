/* Switching between the stacks of the emulated threads. */
#pragma once
#include <stdint.h>
#include <string.h>

/* pushes what a call preserves, leaves the stack pointer in *from, and goes on at `to` */
extern "C" void lumc_emu_switch(void **from, void *to);

#if defined(__x86_64__)
asm(".text\n"
    ".globl lumc_emu_switch\n.hidden lumc_emu_switch\n.type lumc_emu_switch,@function\n"
    "lumc_emu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
/* the stack pointer of a fiber that starts with entry(); it never returns */
static inline void *lumc_emu_prime(char *top, void (*entry)())
{
    void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = nullptr; /* entry() finds the alignment that a call leaves */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    return sp;
}
#elif defined(__aarch64__)
asm(".text\n"
    ".globl lumc_emu_switch\n.hidden lumc_emu_switch\n.type lumc_emu_switch,%function\n"
    "lumc_emu_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
    "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\n"
    "ldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
static inline void *lumc_emu_prime(char *top, void (*entry)())
{
    void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15) - 20;
    memset(sp, 0, 160);
    sp[11] = (void *)entry; /* x30, where ret goes */
    return sp;
}
#else
#error "lumc_emu_switch is written for x86-64 and arm64"
#endif
