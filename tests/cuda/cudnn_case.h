/* A small training in bf16 with groups of query heads, on one rank, whose attention cuDNN can run.
 */
#pragma once

#include "tests/cuda/train_case.h"

static const TrainLayout cudnn_layout = {.layout = {.size = {1, 1, 1, 1, 1}}, .bf16 = TRUE};

static inline TrainTest cudnn_test(void)
{
    const LayoutText text = {.seed = 7, .bytes = 1024, .first = 32, .count = 95};
    const RuntimeOptions options = {
        .transport = "self", .threads = 1, .device = DEVICE_CUDA, .plug_in = &fsdp_cuda_plug_in};
    g_autoptr(GError) error = NULL;
    TrainTest test = {.ranks = 1};

    test.model = layout_model(&(LayoutShape){
        .hidden = 32, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 24, .vocab = 256});
    test.data = layout_data_new(&text, test.model->vocab, TRAIN_SEQ);
    test.runtime = runtime_open(&options, &error);
    g_assert_no_error(error);
    return test;
}

/* Why the device's library can't run that program's attention; NULL: it can. */
static inline char *cudnn_refusal(const TrainTest *test, const Program *program)
{
    Device *device = runtime_device(test->runtime);
    g_autoptr(GError) why = NULL;

    if (device_library_attention(device, program, &why) != NULL) {
        device_queues(device)->library_attention(device, NULL, 0, NULL);
        return NULL;
    }
    return g_strdup(why->message);
}

/* The same for the training, in another layout. */
static inline char *cudnn_refusal_of(const TrainTest *test, const TrainLayout *layout)
{
    LayoutParts parts;
    const ProgramSpec spec = train_spec(test, layout, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);

    return cudnn_refusal(test, set->classes[0]);
}
