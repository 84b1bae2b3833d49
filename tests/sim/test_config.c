/* What other frameworks' configuration files say, and what of it is refused or noted. */
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/config/config.h"
#include "sim/config/flat.h"
#include "sim/plan_config.h"
#include "tests/suite.h"

#include <check.h>
#include <string.h>

static Config *config_of(const char *source, const char *text)
{
    g_autoptr(GError) error = NULL;
    Config *config = config_parse(text, source, &error);

    ck_assert_msg(config != NULL, "%s", error == NULL ? "" : error->message);
    return config;
}

static void refused(const char *source, const char *text, const char *message)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_parse(text, source, &error);

    ck_assert_ptr_null(config);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_str_eq(error->message, message);
}

static const char *value_of(const Flat *flat, const char *name)
{
    const FlatEntry *entry = flat_find(flat, name);

    return entry == NULL ? NULL : entry->value;
}

static void check_axes(const Config *config, guint pp, guint replicate, guint shard, guint cp,
                       guint tp)
{
    ck_assert_uint_eq(config->axis[AXIS_PP], pp);
    ck_assert_uint_eq(config->axis[AXIS_DP_REPLICATE], replicate);
    ck_assert_uint_eq(config->axis[AXIS_DP_SHARD], shard);
    ck_assert_uint_eq(config->axis[AXIS_CP], cp);
    ck_assert_uint_eq(config->axis[AXIS_TP], tp);
}

/* ---- syntaxes ---- */

START_TEST(toml_has_tables_quotes_comments_and_values_over_lines)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Flat) flat = flat_parse_toml("top = 1\n"
                                           "[a.b] # a table\n"
                                           "text = 'x # y'  # not z\n"
                                           "\"quoted key\" = \"v\"\n"
                                           "list = [\n  \"p\", # first\n  \"q\"]\n"
                                           "after = true\n",
                                           "t.toml", &error);

    g_assert_no_error(error);
    ck_assert_str_eq(value_of(flat, "top"), "1");
    ck_assert_str_eq(value_of(flat, "a.b.text"), "x # y");
    ck_assert_str_eq(value_of(flat, "quoted key"), "v");
    ck_assert_str_eq(value_of(flat, "list"), "[\"p\",\"q\"]");
    ck_assert_str_eq(value_of(flat, "after"), "true");
    ck_assert_uint_eq(flat_find(flat, "after")->line, 8);
}
END_TEST

START_TEST(toml_that_breaks_off_is_refused_with_its_line)
{
    static const char *const texts[][2] = {
        {"a = 1\n[b\n", "t.toml:2: [table] is not closed"},
        {"a = 1\nwhat is this\n", "t.toml:2: neither [table] nor key = value"},
        {"\na = [1,\n2\n", "t.toml:2: brackets are not closed"},
    };
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(flat_parse_toml(texts[_i][0], "t.toml", &error));
    ck_assert_str_eq(error->message, texts[_i][1]);
}
END_TEST

START_TEST(yaml_has_mappings_lists_and_references)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Flat) flat = flat_parse_yaml("---\n"
                                           "model:\n"
                                           "  size: 8   # bytes\n"
                                           "  name: 'a: b'\n"
                                           "  copy: ${training.model.size}\n"
                                           "  ranks: ${RANKS:4}\n"
                                           "  nothing: null\n"
                                           "data:\n"
                                           "- path: x\n"
                                           "  kind: y\n"
                                           "- path: z\n"
                                           "size: 9\n",
                                           "t.yaml", &error);

    g_assert_no_error(error);
    ck_assert_str_eq(value_of(flat, "model.size"), "8");
    ck_assert_str_eq(value_of(flat, "size"), "9"); /* the whole path comes first */
    ck_assert_str_eq(value_of(flat, "model.name"), "a: b");
    ck_assert_str_eq(value_of(flat, "copy"), "8");
    ck_assert_str_eq(value_of(flat, "ranks"), "4");
    ck_assert_ptr_null(flat_find(flat, "nothing"));
    ck_assert_str_eq(value_of(flat, "data.-.kind"), "y");
    ck_assert_str_eq(value_of(flat, "data.-.path"), "z");
}
END_TEST

START_TEST(yaml_that_is_indented_by_tabs_or_without_end_is_refused)
{
    g_autoptr(GString) deep = g_string_new(NULL);
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(flat_parse_yaml("a:\n\tb: 1\n", "t.yaml", &error));
    ck_assert_str_eq(error->message, "t.yaml:2: a tab can't indent");
    g_clear_error(&error);
    for (guint i = 0; i < 100; i++)
        g_string_append_printf(deep, "%*sa:\n", (int)i, "");
    ck_assert_ptr_null(flat_parse_yaml(deep->str, "t.yaml", &error));
    ck_assert_str_eq(error->message, "t.yaml:65: nested too deeply");
}
END_TEST

START_TEST(options_are_found_in_arrays_strings_and_behind_variables)
{
    g_autoptr(Flat) flat = flat_parse_options("#!/bin/bash\n"
                                              "TP=${TP:-8}\n"
                                              "# --commented-out 1\n"
                                              "ARGS=(\n"
                                              "    --some-size $TP --other=${OTHER:-3}  # --no 1\n"
                                              "    --flag\n"
                                              ")\n"
                                              "MORE=\"--last-flag \\\n"
                                              "  --text 'a' \"\n"
                                              "torchrun train.py ${ARGS[@]} $MORE\n",
                                              "t.sh");

    ck_assert_str_eq(value_of(flat, "some_size"), "8");
    ck_assert_str_eq(value_of(flat, "other"), "3");
    ck_assert_str_eq(value_of(flat, "flag"), "true");
    ck_assert_str_eq(value_of(flat, "last_flag"), "true");
    ck_assert_str_eq(value_of(flat, "text"), "a");
    ck_assert_ptr_null(flat_find(flat, "commented_out"));
    ck_assert_ptr_null(flat_find(flat, "no"));
    ck_assert_uint_eq(flat_find(flat, "some_size")->line, 5);
}
END_TEST

/* ---- frameworks ---- */

START_TEST(torchtitan_before_and_after_its_names_changed)
{
    g_autoptr(Config) now = config_of("a.toml", "[training]\n"
                                                "local_batch_size = 8\nseq_len = 4096\n"
                                                "[parallelism]\n"
                                                "data_parallel_shard_degree = -1\n"
                                                "tensor_parallel_degree = 4\n"
                                                "pipeline_parallel_degree = 2\n"
                                                "pipeline_parallel_schedule = \"GPipe\"\n"
                                                "pipeline_parallel_microbatch_size = 2\n"
                                                "[activation_checkpoint]\nmode = \"full\"\n");
    g_autoptr(Config) before = config_of("b.TOML", "[training]\n"
                                                   "batch_size = 2\n"
                                                   "data_parallel_shard_degree = 16\n"
                                                   "tensor_parallel_degree = 1\n"
                                                   "[experimental]\n"
                                                   "context_parallel_degree = 2\n");

    check_axes(now, 2, 1, 0, 1, 4);
    ck_assert_uint_eq(now->micro_batch, 2);
    ck_assert_uint_eq(now->micro_batches, 4); /* the local batch is cut by the pipeline */
    ck_assert_int_eq(now->schedule, SCHEDULE_GPIPE);
    ck_assert_int_eq(now->strategy, STRATEGY_SHARD_GRAD_OP); /* a pipeline keeps all units */
    ck_assert_int_eq(now->recompute, RECOMPUTE_FULL);
    ck_assert_ptr_eq(now->recipe, &recipe_fsdp2);
    check_axes(before, 1, 1, 16, 2, 1);
    ck_assert_uint_eq(before->micro_batch, 2);
    ck_assert_int_eq(before->strategy, STRATEGY_FULL_SHARD);
    ck_assert_int_eq(before->context, CONTEXT_ALL_GATHER);
}
END_TEST

START_TEST(torchtitan_in_8_bits_and_what_is_noted)
{
    g_autoptr(Config) config = config_of("a.toml", "[model]\nconverters = [\"float8\"]\n"
                                                   "[float8]\n"
                                                   "enable_fsdp_float8_all_gather = true\n"
                                                   "[training]\n"
                                                   "mixed_precision_reduce = \"bfloat16\"\n"
                                                   "[parallelism]\n"
                                                   "tensor_parallel_degree = 1\n");

    ck_assert_ptr_eq(config->recipe,
                     recipe_with_gradients(recipe_with_precision(&recipe_fsdp2, DTYPE_FP8),
                                           DTYPE_FP32, DTYPE_BF16));
    ck_assert(config->gather_fp8);
    ck_assert_uint_eq(config->notes->len, 0);
}
END_TEST

/* What frameworks say of gradients, and accumulators and reductions that it makes. */
static const struct {
    const char *name, *text;
    const Recipe *of;
    DType precision, gradient, reduce;
    const char *note;
} gradient_texts[] = {
    {"a.toml",
     "[parallelism]\ntensor_parallel_degree = 1\n[training]\nmixed_precision_reduce = "
     "\"float32\"\n",
     &recipe_fsdp2, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32, NULL},
    {"a.toml",
     "[parallelism]\ntensor_parallel_degree = 1\n[training]\nmixed_precision_reduce = "
     "\"bfloat16\"\n",
     &recipe_fsdp2, DTYPE_BF16, DTYPE_FP32, DTYPE_BF16, NULL},
    {"a.toml",
     "[parallelism]\ntensor_parallel_degree = 1\n[training]\nmixed_precision_reduce = "
     "\"float16\"\n",
     &recipe_fsdp2, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32,
     "training.mixed_precision_reduce = float16: priced with fp32"},
    {"a.json", "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}}", &recipe_zero, DTYPE_BF16,
     DTYPE_BF16, DTYPE_BF16, NULL},
    {"a.json",
     "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}, \"data_types\": "
     "{\"grad_accum_dtype\": \"fp32\"}}",
     &recipe_zero, DTYPE_BF16, DTYPE_FP32, DTYPE_BF16, NULL},
    {"a.json",
     "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}, \"communication_data_type\": "
     "\"fp32\"}",
     &recipe_zero, DTYPE_BF16, DTYPE_BF16, DTYPE_FP32, NULL},
    {"a.json",
     "{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}, \"communication_data_type\": "
     "\"bf16\"}",
     &recipe_zero, DTYPE_FP16, DTYPE_FP16, DTYPE_FP16,
     "communication_data_type = bf16: priced with fp16"},
    {"a.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n", &recipe_fsdp2, DTYPE_BF16,
     DTYPE_FP32, DTYPE_BF16, NULL},
    {"a.yaml", "distributed_type: FSDP\nmixed_precision: fp16\n", &recipe_fsdp2, DTYPE_FP16,
     DTYPE_FP32, DTYPE_FP16, NULL},
    {"a.yaml", "distributed_type: FSDP\nmixed_precision: 'no'\n", &recipe_fp32, DTYPE_FP32,
     DTYPE_FP32, DTYPE_FP32, NULL},
    {"a.sh", "--bf16 --micro-batch-size 1", &recipe_megatron, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32,
     NULL},
    {"a.sh", "--micro-batch-size 1 --bf16 --grad-reduce-in-bf16", &recipe_zero, DTYPE_BF16,
     DTYPE_BF16, DTYPE_BF16, NULL},
    {"a.sh", "--fp16 --micro-batch-size 1", &recipe_zero, DTYPE_FP16, DTYPE_FP16, DTYPE_FP16, NULL},
    {"a.sh", "--micro-batch-size 1 --fp16 --accumulate-allreduce-grads-in-fp32", &recipe_megatron,
     DTYPE_FP16, DTYPE_FP32, DTYPE_FP32, NULL},
};

START_TEST(types_of_gradients_are_read)
{
    g_autoptr(Config) config = config_of(gradient_texts[_i].name, gradient_texts[_i].text);
    const Recipe *recipe =
        recipe_with_precision(gradient_texts[_i].of, gradient_texts[_i].precision);

    ck_assert_ptr_eq(config->recipe, recipe_with_gradients(recipe, gradient_texts[_i].gradient,
                                                           gradient_texts[_i].reduce));
    ck_assert_uint_eq(config->notes->len, gradient_texts[_i].note != NULL);
    if (gradient_texts[_i].note != NULL)
        ck_assert_str_eq(g_ptr_array_index(config->notes, 0), gradient_texts[_i].note);
}
END_TEST

START_TEST(megatron_in_a_script_and_in_yaml)
{
    g_autoptr(Config) script =
        config_of("run.sh", "GPUS_PER_NODE=8\n--nproc_per_node $GPUS_PER_NODE --nnodes 4\n"
                            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2\n"
                            "--num-layers 48 --num-layers-per-virtual-pipeline-stage 6\n"
                            "--micro-batch-size 1 --global-batch-size 256 --seq-length 4096\n"
                            "--sequence-parallel --bf16 --use-distributed-optimizer\n"
                            "--recompute-activations\n");
    g_autoptr(Config) yaml = config_of("gpt.yaml", "trainer:\n  num_nodes: 2\n  devices: 8\n"
                                                   "  precision: bf16\n"
                                                   "model:\n  micro_batch_size: 4\n"
                                                   "  tensor_model_parallel_size: 2\n"
                                                   "  activations_checkpoint_granularity: full\n"
                                                   "  optim:\n    name: fused_adam\n");

    check_axes(script, 2, 1, 0, 1, 4);
    ck_assert_uint_eq(script->gpus, 32);
    ck_assert_uint_eq(script->virtual_stages, 4); /* 48 / (6 x 2) */
    ck_assert_int_eq(script->schedule, SCHEDULE_INTERLEAVED);
    ck_assert_int_eq(script->strategy, STRATEGY_SHARD_OPTIMIZER);
    ck_assert_int_eq(script->recompute, RECOMPUTE_SELECTIVE);
    ck_assert_int_eq(script->sequence_parallel, TRUE);
    ck_assert_ptr_eq(script->recipe, &recipe_megatron);
    check_axes(yaml, 1, 0, 1, 1, 2);
    ck_assert_uint_eq(yaml->gpus, 16);
    ck_assert_int_eq(yaml->strategy, STRATEGY_NO_SHARD);
    ck_assert_int_eq(yaml->recompute, RECOMPUTE_FULL);
}
END_TEST

/* A plan gathers in fp8 where blocks are sharded; elsewhere a line says what is priced. */
START_TEST(fp8_gathers_are_those_of_sharded_blocks)
{
    static const struct {
        const char *source, *text;
        gboolean gathers;
        guint notes;
    } files[] = {
        {"a.sh",
         "--micro-batch-size 1 --bf16 --fp8-format hybrid --use-megatron-fsdp "
         "--fp8-param-gather\n",
         TRUE, 0},
        {"a.sh",
         "--micro-batch-size 1 --bf16 --fp8-format hybrid --use-distributed-optimizer "
         "--fp8-param-gather\n",
         FALSE, 1},
        {"a.yaml", "distributed_type: FSDP\nmixed_precision: fp8\nfp8_config:\n  backend: AO\n",
         TRUE, 0},
        {"a.yaml",
         "distributed_type: FSDP\nmixed_precision: fp8\nfp8_config:\n  backend: AO\n"
         "  enable_fsdp_float8_all_gather: false\n",
         FALSE, 0},
        {"a.yaml", "distributed_type: FSDP\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n",
         FALSE, 0},
        {"a.yaml", "distributed_type: FSDP\nmixed_precision: bf16\nfp8_config:\n  backend: AO\n",
         FALSE, 0},
    };

    for (guint i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autoptr(Config) config = config_of(files[i].source, files[i].text);

        ck_assert_msg(config->gather_fp8 == files[i].gathers, "%u", i);
        ck_assert_uint_eq(config->notes->len, files[i].notes);
    }
}
END_TEST

/* Whole experts are priced, and those of DeepSpeed's AutoEP where it is on. */
START_TEST(experts_are_divided_among_as_many_ranks)
{
    g_autoptr(Config) split =
        config_of("a.sh", "--micro-batch-size 1 --use-distributed-optimizer "
                          "--expert-model-parallel-size 8 --expert-tensor-parallel-size 2\n");
    g_autoptr(Config) on =
        config_of("a.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}, "
                            "\"expert_parallel\": {\"enabled\": true, \"autoep_size\": 4}}");
    g_autoptr(Config) off =
        config_of("a.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}, "
                            "\"expert_parallel\": {\"enabled\": false, \"autoep_size\": 4}}");

    ck_assert_uint_eq(split->ep, 8);
    ck_assert_uint_eq(split->notes->len, 1);
    ck_assert_uint_eq(on->ep, 4);
    ck_assert_uint_eq(off->ep, 0);
}
END_TEST

/* By block the first layers of each chunk; uniform all of them. */
START_TEST(megatron_recomputes_some_layers_or_all)
{
    static const char all[] = "torchrun pretrain_gpt.py --num-layers 48 --micro-batch-size 1 "
                              "--global-batch-size 256 --seq-length 4096 --bf16 "
                              "--recompute-granularity full ";
    g_autofree char *block =
        g_strconcat(all, "--recompute-method block --recompute-num-layers 4\n", NULL);
    g_autofree char *uniform =
        g_strconcat(all, "--recompute-method uniform --recompute-num-layers 4\n", NULL);
    g_autoptr(Config) some = config_of("gpt.sh", block), whole = config_of("gpt.sh", uniform);

    ck_assert_int_eq(some->recompute, RECOMPUTE_FULL);
    ck_assert_uint_eq(some->recompute_layers, 4);
    ck_assert_int_eq(whole->recompute, RECOMPUTE_FULL);
    ck_assert_uint_eq(whole->recompute_layers, 0);
    ck_assert_uint_eq(whole->notes->len, some->notes->len + 1); /* every block's input is kept */
}
END_TEST

START_TEST(deepspeed_stages_and_what_is_left_to_the_caller)
{
    g_autoptr(Config) config =
        config_of("ds.json", "{\"train_batch_size\": \"auto\","
                             " \"train_micro_batch_size_per_gpu\": 2,"
                             " \"gradient_accumulation_steps\": 3, \"fp16\": {\"enabled\": true},"
                             " \"zero_optimization\": {\"stage\": 2,"
                             "  \"offload_optimizer\": {\"device\": \"cpu\"}}}");

    ck_assert_int_eq(config->strategy, STRATEGY_SHARD_GRAD_OP);
    ck_assert_uint_eq(config->global_batch, 0);
    ck_assert_uint_eq(config->micro_batch, 2);
    ck_assert_uint_eq(config->micro_batches, 3);
    ck_assert_ptr_eq(config->recipe, recipe_with_precision(&recipe_zero, DTYPE_FP16));
    ck_assert_uint_eq(config->notes->len, 1);
}
END_TEST

START_TEST(accelerate_and_axolotl)
{
    g_autoptr(Config) fsdp = config_of("a.yaml", "distributed_type: FSDP\n"
                                                 "fsdp_config:\n"
                                                 "  fsdp_version: 2\n"
                                                 "  fsdp_reshard_after_forward: false\n"
                                                 "  fsdp_activation_checkpointing: true\n"
                                                 "mixed_precision: 'bf16'\nnum_processes: 8\n");
    g_autoptr(Config) axolotl = config_of("b.yml", "base_model: some/thing\n"
                                                   "dp_shard_size: 4\ntensor_parallel_size: 2\n"
                                                   "fsdp_config:\n"
                                                   "  reshard_after_forward: true\n"
                                                   "micro_batch_size: 2\nsequence_len: 500_000\n"
                                                   "gradient_accumulation_steps: 2\n"
                                                   "optimizer: adamw_torch_8bit\n");

    ck_assert_uint_eq(fsdp->gpus, 8);
    ck_assert_int_eq(fsdp->strategy, STRATEGY_SHARD_GRAD_OP);
    ck_assert_int_eq(fsdp->recompute, RECOMPUTE_FULL);
    ck_assert_ptr_eq(fsdp->recipe, recipe_with_gradients(&recipe_fsdp2, DTYPE_FP32, DTYPE_BF16));
    ck_assert_ptr_eq(axolotl->recipe, fsdp->recipe);
    check_axes(axolotl, 1, 1, 4, 1, 2);
    ck_assert_int_eq(axolotl->strategy, STRATEGY_FULL_SHARD);
    ck_assert_uint_eq(axolotl->seq_len, 500000);
    ck_assert_int_eq(axolotl->optimizer, OPTIMIZER_ADAM8BIT);
}
END_TEST

#define NO_ADAPTERS                                                                                \
    "absent: LoRA and other training of some parameters is not planned (it keeps no gradients, "   \
    "masters and moments of the frozen ones, and as many activations); what is planned trains all"

START_TEST(what_can_not_be_taken_is_refused_with_file_line_field_value)
{
    static const char *const cases[][3] = {
        {"a.toml", "[parallelism]\ntensor_parallel_degree = 'many'\n",
         "a.toml:2: parallelism.tensor_parallel_degree = many: must be a whole number from 1"},
        {"a.toml", "[parallelism]\ntensor_parallel_degree = 0\n",
         "a.toml:2: parallelism.tensor_parallel_degree = 0: must be a whole number from 1"},
        {"a.toml",
         "[parallelism]\npipeline_parallel_degree = 2\ntensor_parallel_degree = 1\n"
         "pipeline_parallel_schedule = \"ZBVZeroBubble\"\n",
         "a.toml:4: parallelism.pipeline_parallel_schedule = ZBVZeroBubble: must be 1F1B, GPipe, "
         "Interleaved1F1B"},
        {"a.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 4}}",
         "a.json:zero_optimization.stage = 4: must be 0, 1, 2, 3"},
        {"a.yaml",
         "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
         "a.yaml:3: deepspeed_config.deepspeed_config_file = ds.json: must be given itself: its "
         "choices stand there"},
        {"a.sh",
         "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2\n"
         "--num-layers-per-virtual-pipeline-stage 2\n",
         "a.sh:2: num_layers_per_virtual_pipeline_stage = 2: must be beside num_layers, which says "
         "how many chunks that makes"},
        {"a.txt", "nothing of that kind\n",
         "a.txt: must be a configuration of torchtitan (.toml), deepspeed (.json), accelerate, "
         "axolotl, NeMo or Primus (.yaml), or a script with Megatron-LM's options"},
        {"l.yml", "base_model: x\nadapter: qlora\n",
         "l.yml:2: adapter = qlora: must be " NO_ADAPTERS},
        {"l.yml", "base_model: x\nload_in_4bit: true\n",
         "l.yml:2: load_in_4bit = true: must be " NO_ADAPTERS},
        {"l.yaml", "stage: sft\nfinetuning_type: lora\nlora_rank: 8\n",
         "l.yaml:2: finetuning_type = lora: must be " NO_ADAPTERS},
        {"l.yaml", "stage: sft\nfinetuning_type: full\ndeepspeed: z3.json\n",
         "l.yaml:2: finetuning_type = full: must be in a file that says how ranks share the model: "
         "LLaMA-Factory's names it as deepspeed, or accelerate's is given to its launcher; --from "
         "takes those"},
        {"n.yaml", "micro_batch_size: 1\npeft:\n  peft_scheme: lora\n",
         "n.yaml:3: peft.peft_scheme = lora: must be " NO_ADAPTERS},
        {"a.json", "[]", "a.json: must be a JSON object"},
    };

    refused(cases[_i][0], cases[_i][1], cases[_i][2]);
}
END_TEST

/* ---- as a request ---- */

static SearchRequest request_of(const Topology *topology)
{
    return (SearchRequest){.topology = topology,
                           .recipe = &recipe_zero,
                           .strategy = -1,
                           .recompute = -1,
                           .schedule = -1,
                           .context = -1,
                           .sequence_parallel = TRUE};
}

static Topology *two_nodes(void)
{
    Topology *topology = g_new0(Topology, 1);

    topology->gpus_per_node = 8;
    topology->nodes = 2;
    return topology;
}

START_TEST(the_open_axis_takes_what_is_left_of_the_gpus)
{
    g_autofree Topology *topology = two_nodes();
    SearchRequest request = request_of(topology);
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_of("a.toml", "[training]\nlocal_batch_size = 2\n"
                                                   "[parallelism]\ntensor_parallel_degree = 4\n");

    request.gpus = 32;
    ck_assert(plan_config_workload(config, "a.toml", TRUE, &request, &error));
    ck_assert_uint_eq(request.global_batch, 2 * 8); /* 32 / 4 data ranks */
    ck_assert_ptr_eq(request.recipe, &recipe_fsdp2);
    ck_assert_uint_eq(request.fixed[AXIS_TP], 0); /* the search is free */
    ck_assert(plan_config_layout(config, "a.toml", &request, &error));
    ck_assert_uint_eq(request.fixed[AXIS_TP], 4);
    ck_assert_uint_eq(request.fixed[AXIS_DP_SHARD], 8);
    ck_assert_uint_eq(request.fixed[AXIS_DP_REPLICATE], 1);
    ck_assert_uint_eq(request.micro_batch, 2);
}
END_TEST

/* Where nothing is sharded a plan has no such axis: that is noted. */
START_TEST(experts_are_divided_as_the_file_says)
{
    static const char megatron[] = "python pretrain_gpt.py --micro-batch-size 1 --bf16 "
                                   "--expert-model-parallel-size 8 %s\n";
    g_autofree Topology *topology = two_nodes();
    SearchRequest request = request_of(topology);
    g_autofree char *whole = g_strdup_printf(megatron, "");
    g_autofree char *sharded = g_strdup_printf(megatron, "--use-distributed-optimizer");
    g_autoptr(Config) ddp = config_of("a.sh", whole), zero = config_of("a.sh", sharded);
    g_autoptr(Config) titan = config_of("a.toml", "[parallelism]\ntensor_parallel_degree = 1\n"
                                                  "expert_parallel_degree = 4\n");

    g_autoptr(Config) axolotl =
        config_of("a.yaml", "base_model: some/thing\nexpert_parallel_size: 2\ndp_shard_size: 4\n"
                            "fsdp_config:\n  fsdp_version: 2\n");

    ck_assert_uint_eq(ddp->ep, 0);
    ck_assert_uint_eq(ddp->notes->len, 1);
    ck_assert_uint_eq(zero->ep, 8);
    ck_assert_uint_eq(zero->notes->len, 0);
    ck_assert_uint_eq(titan->ep, 4);
    ck_assert_uint_eq(axolotl->ep, 2);
    check_axes(axolotl, 1, 1, 8, 1, 1);
    ck_assert_uint_eq(axolotl->notes->len, 1);
    request.gpus = 16;
    ck_assert(plan_config_layout(zero, "a.sh", &request, NULL));
    ck_assert_uint_eq(request.fixed_ep, 8);
}
END_TEST

START_TEST(a_list_of_runs_is_no_configuration)
{
    static const char list[] = "runs:\n"
                               "  - train:\n      global_batch_size: 512\n"
                               "  - train:\n      global_batch_size: %s\n";
    g_autofree char *two = g_strdup_printf(list, "2048"), *twice = g_strdup_printf(list, "512");
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) refused = config_parse(two, "card.yaml", &error);
    g_autoptr(Config) one = config_of("card.yaml", twice);
    g_autoptr(Config) top =
        config_of("a.json", "{\"a\": {\"train_batch_size\": 1}, \"b\": {\"train_batch_size\": 2},"
                            " \"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}}");

    ck_assert_ptr_null(refused);
    ck_assert_ptr_nonnull(strstr(error->message, "card.yaml:"));
    ck_assert_ptr_nonnull(
        strstr(error->message, "global_batch_size = 2048: must be that of one run"));
    ck_assert_uint_eq(one->global_batch, 512);
    ck_assert_uint_eq(top->global_batch, 8);
}
END_TEST

/* Both tiers, in each framework's words. */
static const struct {
    const char *name, *text;
    Tier optimizer, parameters;
} offloads[] = {
    {"a.json",
     "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
     TIER_HOST, TIER_DEVICE},
    {"a.json",
     "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"},"
     " \"offload_param\": {\"device\": \"cpu\"}}}",
     TIER_NVME, TIER_HOST},
    {"a.json",
     "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"none\"}}}",
     TIER_DEVICE, TIER_DEVICE},
    {"a.yaml",
     "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
     "  fsdp_offload_params: true\n",
     TIER_HOST, TIER_HOST},
    {"a.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n", TIER_DEVICE,
     TIER_DEVICE},
    {"a.yaml",
     "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
     "  offload_optimizer_device: cpu\n  offload_param_device: none\n",
     TIER_HOST, TIER_DEVICE},
    {"a.yaml", "base_model: some/thing\nfsdp_config:\n  offload_params: true\n", TIER_HOST,
     TIER_HOST},
    {"a.toml",
     "[training]\nenable_cpu_offload = true\n[parallelism]\n"
     "tensor_parallel_degree = 1\n",
     TIER_HOST, TIER_HOST},
    {"a.sh",
     "python pretrain_gpt.py --micro-batch-size 1 --optimizer-cpu-offload "
     "--use-distributed-optimizer --bf16\n",
     TIER_HOST, TIER_DEVICE},
};

/* No disk of dgx-h100 is stated. */
START_TEST(state_that_lies_elsewhere_is_priced_there)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(Topology) topology = topology_load("dgx-h100", topologies, NULL);
    SearchRequest request = request_of(topology), typed = request;
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_of(offloads[_i].name, offloads[_i].text);
    const Tier optimizer = offloads[_i].optimizer, parameters = offloads[_i].parameters;
    const gboolean moved = optimizer != TIER_DEVICE || parameters != TIER_DEVICE;
    const gboolean fits = optimizer != TIER_NVME;

    ck_assert_int_eq(config->offload.optimizer, optimizer);
    ck_assert_int_eq(config->offload.parameters, parameters);
    ck_assert_int_eq(config->notes->len > 0, moved);
    request.gpus = typed.gpus = 16;
    ck_assert_int_eq(plan_config_layout(config, "a", &request, &error), fits);
    ck_assert_int_eq(request.sharding.offload.optimizer, fits ? optimizer : TIER_DEVICE);
    ck_assert_int_eq(request.sharding.offload.parameters, fits ? parameters : TIER_DEVICE);
    typed.sharding.offload.optimizer = TIER_HOST;
    ck_assert(plan_config_layout(config, "a", &typed, NULL));
    ck_assert_int_eq(typed.sharding.offload.parameters, TIER_DEVICE);
    if (!fits)
        ck_assert_ptr_nonnull(strstr(error->message, "a: it keeps state in nvme memory, of which "
                                                     "topology dgx-h100 states no size"));
}
END_TEST

START_TEST(what_was_typed_comes_before_the_file)
{
    g_autofree Topology *topology = two_nodes();
    SearchRequest request = request_of(topology);
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config =
        config_of("a.json", "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 3},"
                            " \"bf16\": {\"enabled\": false}}");

    request.global_batch = 128;
    request.strategy = STRATEGY_NO_SHARD;
    ck_assert(plan_config_workload(config, "a.json", FALSE, &request, &error));
    ck_assert(plan_config_layout(config, "a.json", &request, &error));
    ck_assert_uint_eq(request.gpus, 16); /* the whole cluster: neither says */
    ck_assert_uint_eq(request.global_batch, 128);
    ck_assert_int_eq(request.strategy, STRATEGY_NO_SHARD);
    ck_assert_ptr_eq(request.recipe, &recipe_zero);
}
END_TEST

START_TEST(a_mesh_that_the_gpus_do_not_make_is_refused)
{
    g_autofree Topology *topology = two_nodes();
    SearchRequest request = request_of(topology);
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_of("a.toml", "[parallelism]\ntensor_parallel_degree = 5\n");

    ck_assert(!plan_config_workload(config, "a.toml", TRUE, &request, &error));
    ck_assert_str_eq(error->message, "a.toml: its axes make multiples of 5 ranks, --gpus is 16");
}
END_TEST

int main(void)
{
    TCase *syntax = tcase_create("syntaxes");
    TCase *frameworks = tcase_create("frameworks");
    TCase *requests = tcase_create("requests");

    tcase_add_test(syntax, toml_has_tables_quotes_comments_and_values_over_lines);
    tcase_add_loop_test(syntax, toml_that_breaks_off_is_refused_with_its_line, 0, 3);
    tcase_add_test(syntax, yaml_has_mappings_lists_and_references);
    tcase_add_test(syntax, yaml_that_is_indented_by_tabs_or_without_end_is_refused);
    tcase_add_test(syntax, options_are_found_in_arrays_strings_and_behind_variables);
    tcase_add_test(frameworks, torchtitan_before_and_after_its_names_changed);
    tcase_add_test(frameworks, torchtitan_in_8_bits_and_what_is_noted);
    tcase_add_loop_test(frameworks, types_of_gradients_are_read, 0, G_N_ELEMENTS(gradient_texts));
    tcase_add_test(frameworks, megatron_in_a_script_and_in_yaml);
    tcase_add_test(frameworks, fp8_gathers_are_those_of_sharded_blocks);
    tcase_add_test(frameworks, experts_are_divided_among_as_many_ranks);
    tcase_add_test(frameworks, megatron_recomputes_some_layers_or_all);
    tcase_add_test(frameworks, deepspeed_stages_and_what_is_left_to_the_caller);
    tcase_add_test(frameworks, accelerate_and_axolotl);
    tcase_add_loop_test(frameworks, what_can_not_be_taken_is_refused_with_file_line_field_value, 0,
                        13);
    tcase_add_test(requests, the_open_axis_takes_what_is_left_of_the_gpus);
    tcase_add_test(requests, experts_are_divided_as_the_file_says);
    tcase_add_test(frameworks, a_list_of_runs_is_no_configuration);
    tcase_add_loop_test(requests, state_that_lies_elsewhere_is_priced_there, 0,
                        G_N_ELEMENTS(offloads));
    tcase_add_test(requests, what_was_typed_comes_before_the_file);
    tcase_add_test(requests, a_mesh_that_the_gpus_do_not_make_is_refused);
    TCase *const cases[] = {syntax, frameworks, requests};
    Suite *suite = suite_create("config");
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
        suite_add_tcase(suite, cases[i]);
    return suite_run(suite);
}
