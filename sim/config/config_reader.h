/* What the readers of sim/config share; not for others. */
#pragma once

#include "sim/config/config.h"
#include "sim/config/flat.h"

/* A file on its way to a Config. */
typedef struct {
    const Flat *flat;
    Config *config;
} Reader;

/* What a word means; a list ends with a zero entry. */
typedef struct {
    const char *word; /* any case */
    gint value;
} Meaning;

/* ZeRO's stages by number, and how PyTorch's context parallelism rotates keys and values. */
extern const Meaning reader_zero_stages[], reader_rotations[];

/* Both leave *out where the file says nothing of @name. */
gboolean reader_uint(const Reader *reader, const char *name, guint *out, GError **error);
gboolean reader_word(const Reader *reader, const char *name, const Meaning *meanings, gint *out,
                     GError **error);

/* "true", "false", yes, no, 1, 0; nothing said is FALSE. */
gboolean reader_flag(const Reader *reader, const char *name, gboolean *out, GError **error);

/* Where @name, of DeepSpeed's "none", "cpu", "nvme", says that state lies. */
gboolean reader_tier(const Reader *reader, const char *name, Tier *tier, GError **error);

/* The same of a flag that moves parameters and the optimiser's state to the host. */
gboolean reader_offload_all(const Reader *reader, const char *name, GError **error);

/* Where @name says among how many ranks experts are divided, once the strategy is known: a plan
 * divides them among ranks that shard. */
gboolean reader_experts(const Reader *reader, const char *name, GError **error);

/* The recipe with gradients accumulated and reduced in the types that @gradient and @reduce name
 * (NULL: nothing does); a type that no recipe has there is a line of config->notes. */
gboolean reader_gradients(const Reader *reader, const char *gradient, const char *reduce,
                          GError **error);

/* Where @name says that parameters are gathered in fp8, once the strategy is known: a plan does so
 * where blocks are sharded. */
gboolean reader_gather_fp8(const Reader *reader, const char *name, GError **error);

/* A line of config->notes where @name says something else than @harmless (NULL: than nothing). */
void reader_note(const Reader *reader, const char *name, const char *harmless, const char *why);

/* One framework each. */
gboolean config_read_torchtitan(const Reader *reader, GError **error);
gboolean config_read_megatron(const Reader *reader, GError **error);
gboolean config_read_deepspeed(const Reader *reader, GError **error);
gboolean config_read_accelerate(const Reader *reader, GError **error);
gboolean config_read_axolotl(const Reader *reader, GError **error);
