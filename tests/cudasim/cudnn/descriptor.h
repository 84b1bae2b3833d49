/* A cuDNN of the simulated device: descriptors that know which attributes they may have.  It is a
 * shared library, as the real one is found and opened; its graphs are run operation by operation.
 */
#pragma once

#include "exec/cuda/cudnn_library.h"

typedef struct {
    DnnAttribute name;
    DnnAttributeType type;
    gint64 count;
    void *values;
} FakeAttribute;

typedef struct {
    DnnDescriptorType type;
    gboolean finalized;
    GArray *attributes; /* FakeAttribute */
} FakeDescriptor;

/* cudnnStatus_t */
enum { FAKE_SUCCESS, FAKE_BAD_PARAM = 2000, FAKE_NOT_SUPPORTED = 3000, FAKE_FAILED = 5000 };

/* Of those functions that return a status: sets what cudnnGetLastErrorString() gives. */
int fake_fail(int status, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* What was set; NULL: nothing was. */
const void *fake_get(const FakeDescriptor *of, DnnAttribute name, gint64 *count);
gint64 fake_int(const FakeDescriptor *of, DnnAttribute name); /* of type DNN_TYPE_INT64 */
int fake_enum(const FakeDescriptor *of, DnnAttribute name, int otherwise);
gboolean fake_flag(const FakeDescriptor *of, DnnAttribute name);
FakeDescriptor *fake_descriptor(const FakeDescriptor *of, DnnAttribute name); /* or NULL */

/* The operations of a graph. */
FakeDescriptor *const *fake_ops(const FakeDescriptor *graph, gint64 *count);

/* What the engine of a configuration overwrites while it runs: 0 is the fastest, which takes most.
 */
enum { FAKE_ENGINES = 2 };
gint64 fake_workspace_bytes(const FakeDescriptor *graph, gint64 engine);
gint64 fake_engine(const FakeDescriptor *configuration);
