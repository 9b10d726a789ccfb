/* triton.h - what triton.c uses of Triton Inference Server: its functions are the server's own and
 * are found when it loads the library. No header of Triton is needed for this. With TRITON_HEADERS
 * its own ones are read instead, after triton_names.h, as they name no types for C. */
#ifndef LUMC_TRITON_H
#define LUMC_TRITON_H

#ifdef TRITON_HEADERS
#include "triton_names.h"
/* these name the types of the one before */
#include "triton/core/tritonserver.h"
#include "triton/core/tritonbackend.h"
#else

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRITONBACKEND_API_VERSION_MAJOR 1

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONBACKEND_Backend TRITONBACKEND_Backend;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_ModelInstance TRITONBACKEND_ModelInstance;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_Response TRITONBACKEND_Response;
typedef struct TRITONBACKEND_Output TRITONBACKEND_Output;

typedef enum {
  TRITONSERVER_ERROR_UNKNOWN,
  TRITONSERVER_ERROR_INTERNAL,
  TRITONSERVER_ERROR_NOT_FOUND,
  TRITONSERVER_ERROR_INVALID_ARG,
  TRITONSERVER_ERROR_UNAVAILABLE,
  TRITONSERVER_ERROR_UNSUPPORTED
} TRITONSERVER_Error_Code;
typedef enum {
  TRITONSERVER_TYPE_INVALID,
  TRITONSERVER_TYPE_BOOL,
  TRITONSERVER_TYPE_UINT8,
  TRITONSERVER_TYPE_UINT16,
  TRITONSERVER_TYPE_UINT32,
  TRITONSERVER_TYPE_UINT64,
  TRITONSERVER_TYPE_INT8,
  TRITONSERVER_TYPE_INT16,
  TRITONSERVER_TYPE_INT32,
  TRITONSERVER_TYPE_INT64,
  TRITONSERVER_TYPE_FP16,
  TRITONSERVER_TYPE_FP32,
  TRITONSERVER_TYPE_FP64,
  TRITONSERVER_TYPE_BYTES,
  TRITONSERVER_TYPE_BF16
} TRITONSERVER_DataType;
typedef enum {
  TRITONSERVER_MEMORY_CPU,
  TRITONSERVER_MEMORY_CPU_PINNED,
  TRITONSERVER_MEMORY_GPU
} TRITONSERVER_MemoryType;
typedef enum {
  TRITONSERVER_PARAMETER_STRING,
  TRITONSERVER_PARAMETER_INT,
  TRITONSERVER_PARAMETER_BOOL
} TRITONSERVER_ParameterType;
typedef enum {
  TRITONSERVER_INSTANCEGROUPKIND_AUTO,
  TRITONSERVER_INSTANCEGROUPKIND_CPU,
  TRITONSERVER_INSTANCEGROUPKIND_GPU,
  TRITONSERVER_INSTANCEGROUPKIND_MODEL
} TRITONSERVER_InstanceGroupKind;
typedef enum {
  TRITONSERVER_LOG_INFO,
  TRITONSERVER_LOG_WARN,
  TRITONSERVER_LOG_ERROR
} TRITONSERVER_LogLevel;
typedef enum { TRITONBACKEND_ARTIFACT_FILESYSTEM } TRITONBACKEND_ArtifactType;
enum { TRITONSERVER_REQUEST_RELEASE_ALL = 1, TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1 };

/* ---- of the server; a function fails where it gives an error, which is the caller's to delete */
TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char *text);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *);
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char *file, const int line,
                                            const char *text);
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *, const char **text,
                                                        size_t *size);
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *);

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor);

TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *,
                                                  TRITONBACKEND_ArtifactType *, const char **where);
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *, uint64_t *version);
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *, const uint32_t version,
                                              TRITONSERVER_Message **);
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *, void **state);
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *, void *state);

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *,
                                                     TRITONBACKEND_Model **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *,
                                                    TRITONSERVER_InstanceGroupKind *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *, int32_t *id);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *, void **state);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *, void *state);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *, const bool success,
    const uint64_t start_ns, const uint64_t compute_start_ns, const uint64_t compute_end_ns,
    const uint64_t end_ns);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance *, const uint64_t batch_size, const uint64_t start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t end_ns);

TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *, uint32_t *n);
TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *, const uint32_t index,
                                                   const char **name, TRITONSERVER_ParameterType *,
                                                   const void **value);
TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *, const char *name,
                                               TRITONBACKEND_Input **);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *, uint32_t *n);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *, const uint32_t index,
                                                    const char **name);
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *, uint32_t flags);
TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *, const char **name,
                                                  TRITONSERVER_DataType *, const int64_t **shape,
                                                  uint32_t *rank, uint64_t *bytes,
                                                  uint32_t *pieces);
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *, const uint32_t piece,
                                              const void **data, uint64_t *bytes,
                                              TRITONSERVER_MemoryType *, int64_t *memory_id);
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **, TRITONBACKEND_Request *);
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *, TRITONBACKEND_Output **,
                                                 const char *name, const TRITONSERVER_DataType,
                                                 const int64_t *shape, const uint32_t rank);
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *, void **data,
                                               const uint64_t bytes, TRITONSERVER_MemoryType *,
                                               int64_t *memory_id);
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *, const uint32_t flags,
                                               TRITONSERVER_Error *);

/* ---- of this library: what the server calls */
TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *);
TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *,
                                                       TRITONBACKEND_Request **,
                                                       const uint32_t count);

#endif

/* Older servers have none; a model without dims that need them is loaded there, too. */
#pragma weak TRITONBACKEND_RequestParameterCount
#pragma weak TRITONBACKEND_RequestParameter

#endif
