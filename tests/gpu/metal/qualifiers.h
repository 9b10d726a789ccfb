// Address spaces mean nothing here (address_spaces.py checks them), and what the attributes of
// parameters deliver. Last of all headers: the macros are ordinary words.
#pragma once

namespace lumc_msl {
struct Position { // of a thread or a group, in as many dimensions as the kernel asks for
  uint x, y, z;
  operator uint() const { return x; }
  operator ushort() const { return ushort(x); }
  operator metal::uint2() const { return {x, y}; }
  operator metal::uint3() const { return {x, y, z}; }
  operator metal::ushort2() const { return {ushort(x), ushort(y)}; }
  operator metal::ushort3() const { return {ushort(x), ushort(y), ushort(z)}; }
};
#define LUMC_POSITION(name, index)                                                                 \
  LUMC_INSIDE Position name() { return {index.x, index.y, index.z}; }
LUMC_POSITION(thread_position_in_threadgroup, here().thread)
LUMC_POSITION(threadgroup_position_in_grid, here().block)
LUMC_POSITION(threads_per_threadgroup, here().threads)
LUMC_POSITION(threadgroups_per_grid, here().blocks)
#undef LUMC_POSITION
LUMC_INSIDE Position thread_position_in_grid() { // launches are in one dimension
  return {here().block.x * here().threads.x + here().thread.x, 0, 0};
}
LUMC_INSIDE uint thread_index_in_threadgroup() { return here().thread.x; }
LUMC_INSIDE uint thread_index_in_simdgroup() { return lane(); }
LUMC_INSIDE uint simdgroup_index_in_threadgroup() { return here().thread.x / WIDTH; }
LUMC_INSIDE uint threads_per_simdgroup() { return WIDTH; }
LUMC_INSIDE uint simdgroups_per_threadgroup() { return (here().threads.x + WIDTH - 1) / WIDTH; }
} // namespace lumc_msl

#define kernel __attribute__((unused)) static
#define device
#define constant const
#define thread
#define threadgroup
