// Writes, reads and compares trainer.json by one table of its fields. Numbers of 64 bits (seed,
// hashes) are strings there, since JSON's numbers are doubles for most readers.
#include "checkpoint/trainer_state.h"

#include "base/config.h"
#include "base/file.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/columns.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Increment FORMAT when an older dtrain would misread or ignore something essential in a new
// checkpoint, so that it refuses the checkpoint. A field that older checkpoints lack does not need
// this (LATER_ROW). Checkpoints of mixtures have MIXTURE_FORMAT, because an older dtrain would
// train their shards in another order.
enum {
    FORMAT = 1,
    MIXTURE_FORMAT = 2,
    TRAINER_LIMIT = 256 << 20,
    HASH_DIGITS = 16
}; // bytes: about a million shards

// The fields of the state, in the order of trainer.json. Fields named like a configuration key fix
// the data order and must not change on resume.
#define ROW(kind, key, member, named, ...) LATER_ROW(kind, key, member, named, "", __VA_ARGS__)
// A field that older checkpoints lack; written only if it differs from `standard`.
#define LATER_ROW(kind, key, member, named, standard, ...)                                         \
    {                                                                                              \
        .name = key, .type = DT_CONFIG_##kind, .fallback = standard,                               \
        .offset = offsetof(struct dt_trainer_state, member), .json = named, __VA_ARGS__            \
    }
// clang-format off
static const struct dt_config_key fields[] = {
    ROW(INT, "", step, "step", .max = DT_JSON_INT_MAX),
    ROW(INT, "", updates, "updates", .max = DT_JSON_INT_MAX),
    ROW(INT, "", skips, "skips", .max = DT_JSON_INT_MAX),
    ROW(INT, "", skipped_in_a_row, "skipped_in_a_row", .max = DT_JSON_INT_MAX),
    ROW(INT, "", tokens, "tokens", .max = DT_JSON_INT_MAX),
    ROW(INT, "data.batch", order.batch, "batch", .min = 1, .max = DT_JSON_INT_MAX),
    ROW(INT, "data.seq_len", order.seq_len, "seq_len", .min = 1, .max = DT_JSON_INT_MAX),
    ROW(INT, "data.block", order.block, "block", .min = 1, .max = DT_JSON_INT_MAX),
    ROW(INT, "data.reset_token", order.reset_token, "reset_token", .min = -1, .max = DT_JSON_INT_MAX),
    ROW(INT, "run.seed", order.seed, "seed", .max = 0x1p63),
    ROW(ENUM, "", storage, "storage", .choices = "fp32|bf16"), // enum dt_dtype
    ROW(BOOL, "data.shuffle", order.shuffle, "shuffle"),
    ROW(BOOL, "data.reset_after", order.reset_after, "reset_after"),
    LATER_ROW(STRING, "data.inputs", order.inputs, "inputs", ""),
    LATER_ROW(STRING, "data.targets", order.targets, "targets", ""),
    LATER_ROW(STRING, "data.weights", order.weights, "weights", ""),
    LATER_ROW(STRING, "data.mask", order.mask, "mask", ""),
    LATER_ROW(STRING, "data.episodes", order.episodes, "episodes", ""),
    LATER_ROW(INT, "data.time_axis", order.time_axis, "time_axis", "0", .max = 1),
    LATER_ROW(FLOAT, "data.val_fraction", order.val_fraction, "val_fraction", "0", .max = 0.5),
    LATER_ROW(INT, "data.stride", order.stride, "stride", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(BOOL, "data.carry_state", order.carry_state, "carry_state", "false"),
    LATER_ROW(BOOL, "data.reverse_complement", order.reverse_complement, "reverse_complement", "false"),
    LATER_ROW(STRING, "", order.mixture, "mixture", ""),
    LATER_ROW(INT, "", best_step, "best_step", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(FLOAT, "", best_loss, "best_loss", "0", .min = -1e300, .max = 1e300),
    LATER_ROW(INT, "", evaluations_since_best, "evaluations_since_best", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(FLOAT, "", losses.mean, "loss_mean", "0", .min = -1e300, .max = 1e300),
    LATER_ROW(FLOAT, "", losses.variance, "loss_variance", "0", .max = 1e300),
    LATER_ROW(INT, "", losses.count, "loss_count", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(INT, "", bad_in_a_row, "bad_in_a_row", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(INT, "", rollbacks, "rollbacks", "0", .max = DT_JSON_INT_MAX),
    LATER_ROW(STRING, "", left_out, "left_out", ""),
    LATER_ROW(STRING, "", device, "device", ""),
};
// clang-format on
static const struct dt_config_key *const fields_end = fields + sizeof fields / sizeof *fields;

// Words, and integers that JSON's doubles cannot represent.
static bool is_string(const struct dt_config_key *field)
{
    return field->type == DT_CONFIG_ENUM || field->type == DT_CONFIG_STRING ||
           (field->type == DT_CONFIG_INT && field->max > (double)DT_JSON_INT_MAX);
}

static bool is_later(const struct dt_config_key *field)
{
    return field->fallback[0] != 0 || field->type == DT_CONFIG_STRING;
}

static struct dt_trainer_state standard_state(void)
{
    struct dt_trainer_state state = {.storage = -1}; // checkpoints of older versions have none
    for (const struct dt_config_key *field = fields; field < fields_end; field++)
        if (is_later(field))
            dt_config_set_default(field, &state);
    return state;
}

static bool add_hash(cJSON *json, const char *name, uint64_t hash)
{
    char text[HASH_DIGITS + 1];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return cJSON_AddStringToObject(json, name, text);
}

static bool add_shard(cJSON *list, const struct dt_shard *shard)
{
    cJSON *json = cJSON_CreateObject();
    if (!json || !cJSON_AddItemToArray(list, json)) {
        cJSON_Delete(json);
        return false;
    }
    return cJSON_AddStringToObject(json, "name", basename(shard->path)) &&
           dt_json_add_int(json, "size", shard->file_bytes) &&
           dt_json_add_int(json, "count", shard->count) &&
           add_hash(json, "first_hash", shard->first_hash) &&
           add_hash(json, "last_hash", shard->last_hash) &&
           (shard->data_hash == 0 || add_hash(json, "data_hash", shard->data_hash));
}

dt_status dt_trainer_text(const struct dt_trainer_state *state, const struct dt_dataset *train,
                          char **text)
{
    cJSON *json = cJSON_CreateObject();
    const struct dt_trainer_state standard = standard_state();
    bool fine =
        json && dt_json_add_int(json, "format", state->order.mixture[0] ? MIXTURE_FORMAT : FORMAT);
    for (const struct dt_config_key *field = fields; field < fields_end && fine; field++) {
        char buffer[DT_CONFIG_STRING_MAX];
        if (is_later(field) && dt_config_equal(field, state, &standard))
            continue;
        const char *value = dt_config_value_text(field, state, buffer);
        fine = is_string(field) ? cJSON_AddStringToObject(json, field->json, value)
                                : cJSON_AddRawToObject(json, field->json, value);
    }
    cJSON *list = fine ? cJSON_AddArrayToObject(json, "shards") : NULL;
    fine = list != NULL;
    for (int64_t i = 0; fine && i < train->n_shards; i++)
        fine = add_shard(list, &train->shards[i]);
    *text = fine ? dt_json_text(json) : NULL;
    cJSON_Delete(json);
    return *text ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of trainer.json");
}

void dt_order_tidy(struct dt_order_keys *order)
{
    dt_columns_tidy(false, order->inputs);
    dt_columns_tidy(true, order->targets);
    dt_columns_tidy_weights(order->weights);
    dt_columns_tidy_groups(order->episodes);
}

struct dt_part_stamp dt_trainer_stamp(const struct dt_trainer_state *state)
{
    const int64_t counts[] = {state->order.seed,  state->order.batch, state->order.seq_len,
                              state->updates,     state->skips,       state->tokens,
                              state->losses.count};
    const double losses[] = {state->losses.mean + 0.0, state->losses.variance + 0.0}; // no -0
    return (struct dt_part_stamp){state->step,
                                  XXH64(losses, sizeof losses, XXH64(counts, sizeof counts, 0))};
}

static dt_status read_hash(const char *path, const cJSON *json, const char *field, uint64_t *hash)
{
    const char *text;
    DT_TRY(dt_json_string(path, json, field, &text));
    if (strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS)
        return dt_json_reject(path, json, field, "a string of 16 hex digits");
    *hash = strtoull(text, NULL, 16);
    return DT_OK;
}

static dt_status read_shard(const char *path, const cJSON *json, struct dt_shard *shard)
{
    const char *name;
    DT_TRY(dt_json_string(path, json, "name", &name));
    DT_TRY(dt_json_int(path, json, "size", 0, DT_JSON_INT_MAX, &shard->file_bytes));
    DT_TRY(dt_json_int(path, json, "count", 0, DT_JSON_INT_MAX, &shard->count));
    DT_TRY(read_hash(path, json, "first_hash", &shard->first_hash));
    DT_TRY(read_hash(path, json, "last_hash", &shard->last_hash));
    if (dt_json_has(json, "data_hash")) // older checkpoints have none
        DT_TRY(read_hash(path, json, "data_hash", &shard->data_hash));
    return dt_memory_text(&shard->path, "%s", name);
}

static dt_status read_shards(const char *path, const cJSON *json, struct dt_dataset *train)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "shards"), *item;
    if (!cJSON_IsArray(list))
        return dt_json_reject(path, json, "shards", "a list");
    cJSON_ArrayForEach(item, list)
    {
        struct dt_shard shard = {0};
        DT_TRY(dt_list_grow(&train->shards, train->n_shards, sizeof shard));
        DT_TRY_NOTE(read_shard(path, item, &shard), "shard %lld of the list",
                    (long long)train->n_shards);
        train->shards[train->n_shards++] = shard;
    }
    return DT_OK;
}

static dt_status read_field(const char *path, const cJSON *json, const struct dt_config_key *field,
                            struct dt_trainer_state *state)
{
    void *value = (char *)state + field->offset;
    char problem[DT_CONFIG_PROBLEM], allowed[DT_CONFIG_ALLOWED];
    const char *text;
    if (field->type == DT_CONFIG_BOOL)
        return dt_json_bool(path, json, field->json, value);
    if (field->type == DT_CONFIG_FLOAT)
        return dt_json_double(path, json, field->json, field->min, field->max, value);
    if (!is_string(field))
        return dt_json_int(path, json, field->json, (int64_t)field->min, (int64_t)field->max,
                           value);
    DT_TRY(dt_json_string(path, json, field->json, &text));
    if (dt_config_convert(field, text, state, problem))
        return DT_OK;
    dt_config_allowed(field, allowed);
    return dt_json_reject(path, json, field->json, "a string of %s", allowed);
}

static dt_status read_state(const char *path, const cJSON *json, struct dt_trainer_state *state)
{
    int64_t format;
    struct dt_skips left_out;
    DT_TRY(dt_json_int(path, json, "format", 1, DT_JSON_INT_MAX, &format));
    if (format > MIXTURE_FORMAT)
        return DT_FAIL(DT_USER, "use the dtrain that wrote it, or a newer one",
                       "%s: a newer dtrain wrote this checkpoint, in format %lld; this one reads "
                       "formats up to %d",
                       path, (long long)format, MIXTURE_FORMAT);
    *state = standard_state();
    for (const struct dt_config_key *field = fields; field < fields_end; field++)
        if (!(is_later(field) || field->type == DT_CONFIG_ENUM) || dt_json_has(json, field->json))
            DT_TRY(read_field(path, json, field, state));
    dt_order_tidy(&state->order); // older checkpoints have the texts of the keys
    DT_TRY_NOTE(dt_skips_parse(state->left_out, &left_out), "reading left_out of %s", path);
    return DT_OK;
}

dt_status dt_trainer_read(const char *path, struct dt_trainer_state *state,
                          struct dt_dataset **train)
{
    cJSON *json;
    *state = (struct dt_trainer_state){0};
    *train = NULL;
    DT_TRY(dt_json_read(path, TRAINER_LIMIT, &json));
    struct dt_dataset *read;
    dt_status status = DT_NEW(&read, 1, "the list of shards of %s", path);
    if (status == DT_OK)
        status = read_state(path, json, state);
    if (status == DT_OK)
        status = read_shards(path, json, read);
    cJSON_Delete(json);
    if (status == DT_OK)
        *train = read;
    else
        dt_dataset_free(read);
    return status;
}

// A shard is identified by name (without folders, since data may move), size, count and hashes;
// checkpoints of an older dtrain have only the first and last hash. A difference only in hashes may
// be allowed.
static void compare_shard(struct dt_problems *problems, const struct dt_shard *now,
                          const struct dt_shard *saved, long long number, bool may_differ)
{
    const char *name = basename(now->path);
    if (strcmp(name, saved->path) != 0)
        dt_problems_add(problems, "data.train: shard %lld is %.100s, the checkpoint has %.100s",
                        number, name, saved->path);
    else if (now->count != saved->count)
        dt_problems_add(problems, "data.train: shard %lld, %.100s, has %lld elements, had %lld",
                        number, name, (long long)now->count, (long long)saved->count);
    else if (now->file_bytes != saved->file_bytes)
        dt_problems_add(problems, "data.train: shard %lld, %.100s, has %lld bytes, had %lld",
                        number, name, (long long)now->file_bytes, (long long)saved->file_bytes);
    else if (now->first_hash != saved->first_hash || now->last_hash != saved->last_hash ||
             (saved->data_hash != 0 && now->data_hash != saved->data_hash)) {
        if (may_differ)
            dt_warn("data.train: shard %lld, %.100s, has different data than the checkpoint's "
                    "(data.allow_changed = true)",
                    number, name);
        else
            dt_problems_add(problems,
                            "data.train: shard %lld, %.100s, has different data (if it was "
                            "repaired, data.allow_changed = true resumes)",
                            number, name);
    }
}

void dt_trainer_compare(struct dt_problems *problems, const struct dt_trainer_state *now,
                        const struct dt_dataset *train_now, const struct dt_trainer_state *saved,
                        const struct dt_dataset *train_saved)
{
    char is[DT_CONFIG_STRING_MAX], was[DT_CONFIG_STRING_MAX];
    const struct dt_shard *shards = train_now->shards, *saved_shards = train_saved->shards;
    bool hashed = true;
    for (const struct dt_config_key *field = fields; field < fields_end; field++)
        if (field->name[0] && !dt_config_equal(field, now, saved))
            dt_problems_add(problems, "%s is %s, the checkpoint has %s", field->name,
                            dt_config_value_text(field, now, is),
                            dt_config_value_text(field, saved, was));
    if (train_now->n_shards != train_saved->n_shards)
        dt_problems_add(problems, "data.train has %lld shards, the checkpoint has %lld",
                        (long long)train_now->n_shards, (long long)train_saved->n_shards);
    for (int64_t i = 0; i < train_now->n_shards && i < train_saved->n_shards; i++) {
        compare_shard(problems, &shards[i], &saved_shards[i], (long long)i + 1,
                      train_now->may_differ);
        hashed &= saved_shards[i].data_hash != 0 || shards[i].data_hash == 0;
    }
    if (!hashed)
        dt_info("an older dtrain wrote the checkpoint: that its shards are the same was checked by "
                "their sizes and a few of their rows alone");
}
