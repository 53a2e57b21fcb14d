// trainer.json, written and read. Words of 64 bits (seed, hashes) are strings there, since JSON's
// numbers are doubles for most readers.
#include "checkpoint/trainer_state.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, TRAINER_LIMIT = 256 << 20, HASH_DIGITS = 16 }; // bytes: about a million shards

// The whole numbers of the state; trainer.json's names are the keys' where there is a key.
struct field {
    const char *name;
    const char *key; // configuration key that may not change, or NULL
    int64_t *value, min;
};
enum { FIELDS = 9 };

static void list_fields(struct dt_trainer_state *s, struct field fields[FIELDS])
{
    const struct field list[FIELDS] = {
        {"step", NULL, &s->step, 0},
        {"updates", NULL, &s->updates, 0},
        {"skips", NULL, &s->skips, 0},
        {"skipped_in_a_row", NULL, &s->skipped_in_a_row, 0},
        {"tokens", NULL, &s->tokens, 0},
        {"batch", "data.batch", &s->batch, 1},
        {"seq_len", "data.seq_len", &s->seq_len, 1},
        {"block", "data.block", &s->block, 1},
        {"reset_token", "data.reset_token", &s->reset_token, -1},
    };
    memcpy(fields, list, sizeof list);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool add_hash(cJSON *json, const char *name, uint64_t hash)
{
    char text[HASH_DIGITS + 1];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return cJSON_AddStringToObject(json, name, text);
}

static bool add_seed(cJSON *json, uint64_t seed)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, seed);
    return cJSON_AddStringToObject(json, "seed", text);
}

static bool add_shard(cJSON *list, const struct dt_shard *shard)
{
    cJSON *json = cJSON_CreateObject();
    if (!json || !cJSON_AddItemToArray(list, json)) {
        cJSON_Delete(json);
        return false;
    }
    return cJSON_AddStringToObject(json, "name", base_name(shard->path)) &&
           dt_json_add_int(json, "size", shard->file_bytes) &&
           dt_json_add_int(json, "count", shard->count) &&
           add_hash(json, "first_hash", shard->first_hash) &&
           add_hash(json, "last_hash", shard->last_hash);
}

static bool add_state(cJSON *json, struct dt_trainer_state state)
{
    struct field fields[FIELDS];
    bool fine = dt_json_add_int(json, "format", FORMAT);
    list_fields(&state, fields);
    for (int i = 0; i < FIELDS; i++)
        fine = dt_json_add_int(json, fields[i].name, *fields[i].value) && fine;
    return fine && add_seed(json, state.seed) &&
           cJSON_AddStringToObject(json, "storage", dt_dtype_name((dt_dtype)state.storage)) &&
           cJSON_AddBoolToObject(json, "shuffle", state.shuffle) &&
           cJSON_AddBoolToObject(json, "reset_after", state.reset_after);
}

static bool add_shards(cJSON *json, const struct dt_dataset *train)
{
    cJSON *list = cJSON_AddArrayToObject(json, "shards");
    for (int64_t i = 0; list && i < train->n_shards; i++)
        if (!add_shard(list, &train->shards[i]))
            return false;
    return list != NULL;
}

dt_status dt_trainer_text(const struct dt_trainer_state *state, const struct dt_dataset *train,
                          char **text)
{
    cJSON *json = cJSON_CreateObject();
    bool fine = json && add_state(json, *state) && add_shards(json, train);
    char *print = fine ? cJSON_Print(json) : NULL;
    int length = print ? asprintf(text, "%s\n", print) : -1;
    cJSON_free(print);
    cJSON_Delete(json);
    return length >= 0 ? DT_OK
                       : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of trainer.json");
}

static dt_status read_seed(const char *path, const cJSON *json, uint64_t *seed)
{
    const char *text;
    char again[24];
    DT_TRY(dt_json_string(path, json, "seed", &text));
    *seed = strtoull(text, NULL, 10);
    snprintf(again, sizeof again, "%" PRIu64, *seed);
    if (strcmp(text, again) != 0) // signs, blanks, overflow, other digits
        return dt_json_reject(path, json, "seed", "a string of a whole number below 2^64");
    return DT_OK;
}

// Checkpoints of older versions have none.
static dt_status read_storage(const char *path, const cJSON *json, int *storage)
{
    const char *text;
    *storage = -1;
    if (!dt_json_has(json, "storage"))
        return DT_OK;
    DT_TRY(dt_json_string(path, json, "storage", &text));
    for (int type = DT_F32; type <= DT_BF16; type++)
        if (strcmp(text, dt_dtype_name((dt_dtype)type)) == 0)
            *storage = type;
    return *storage >= 0 ? DT_OK : dt_json_reject(path, json, "storage", "fp32 or bf16");
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

static dt_status read_shard(const char *path, const cJSON *json, struct dt_fingerprint *shard)
{
    const char *name;
    DT_TRY(dt_json_string(path, json, "name", &name));
    DT_TRY(dt_json_int(path, json, "size", 0, DT_JSON_INT_MAX, &shard->size));
    DT_TRY(dt_json_int(path, json, "count", 0, DT_JSON_INT_MAX, &shard->count));
    DT_TRY(read_hash(path, json, "first_hash", &shard->first_hash));
    DT_TRY(read_hash(path, json, "last_hash", &shard->last_hash));
    shard->name = strdup(name);
    return shard->name ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory to read %s", path);
}

static dt_status read_shards(const char *path, const cJSON *json, struct dt_fingerprints *shards)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "shards"), *item;
    if (!cJSON_IsArray(list))
        return dt_json_reject(path, json, "shards", "a list");
    shards->shards = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *shards->shards);
    if (!shards->shards)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to read %s", path);
    cJSON_ArrayForEach(item, list)
    {
        DT_TRY_NOTE(read_shard(path, item, &shards->shards[shards->n]), "shard %lld of the list",
                    (long long)shards->n);
        shards->n++;
    }
    return DT_OK;
}

static dt_status read_state(const char *path, const cJSON *json, struct dt_trainer_state *state)
{
    struct field fields[FIELDS];
    int64_t format;
    DT_TRY_NOTE(dt_json_int(path, json, "format", FORMAT, FORMAT, &format),
                "a newer dtrain may have written it");
    list_fields(state, fields);
    for (int i = 0; i < FIELDS; i++)
        DT_TRY(dt_json_int(path, json, fields[i].name, fields[i].min, DT_JSON_INT_MAX,
                           fields[i].value));
    DT_TRY(read_seed(path, json, &state->seed));
    DT_TRY(read_storage(path, json, &state->storage));
    DT_TRY(dt_json_bool(path, json, "shuffle", &state->shuffle));
    return dt_json_bool(path, json, "reset_after", &state->reset_after);
}

dt_status dt_trainer_read(const char *path, struct dt_trainer_state *state,
                          struct dt_fingerprints *shards)
{
    cJSON *json;
    *state = (struct dt_trainer_state){0};
    *shards = (struct dt_fingerprints){0};
    DT_TRY(dt_json_read(path, TRAINER_LIMIT, &json));
    dt_status status = read_state(path, json, state);
    if (status == DT_OK)
        status = read_shards(path, json, shards);
    cJSON_Delete(json);
    if (status != DT_OK)
        dt_fingerprints_free(shards);
    return status;
}

void dt_fingerprints_free(struct dt_fingerprints *shards)
{
    for (int64_t i = 0; i < shards->n; i++)
        free(shards->shards[i].name);
    free(shards->shards);
    *shards = (struct dt_fingerprints){0};
}

static void compare_flag(struct dt_problems *problems, const char *key, bool now, bool saved)
{
    if (now != saved)
        dt_problems_add(problems, "%s is %s, the checkpoint has %s", key, now ? "true" : "false",
                        saved ? "true" : "false");
}

void dt_trainer_compare(struct dt_problems *problems, const struct dt_trainer_state *now,
                        const struct dt_trainer_state *saved)
{
    struct dt_trainer_state a = *now, b = *saved;
    struct field here[FIELDS], there[FIELDS];
    list_fields(&a, here);
    list_fields(&b, there);
    if (now->seed != saved->seed)
        dt_problems_add(problems, "run.seed is %" PRIu64 ", the checkpoint has %" PRIu64, now->seed,
                        saved->seed);
    for (int i = 0; i < FIELDS; i++)
        if (here[i].key && *here[i].value != *there[i].value)
            dt_problems_add(problems, "%s is %lld, the checkpoint has %lld", here[i].key,
                            (long long)*here[i].value, (long long)*there[i].value);
    compare_flag(problems, "data.shuffle", now->shuffle, saved->shuffle);
    compare_flag(problems, "data.reset_after", now->reset_after, saved->reset_after);
}

static void compare_shard(struct dt_problems *problems, const struct dt_shard *now,
                          const struct dt_fingerprint *saved, int64_t index)
{
    const char *name = base_name(now->path);
    long long number = (long long)index + 1;
    if (strcmp(name, saved->name) != 0)
        dt_problems_add(problems, "data.train: shard %lld is %.100s, the checkpoint has %.100s",
                        number, name, saved->name);
    else if (now->count != saved->count)
        dt_problems_add(problems, "data.train: shard %lld, %.100s, has %lld elements, had %lld",
                        number, name, (long long)now->count, (long long)saved->count);
    else if (now->file_bytes != saved->size)
        dt_problems_add(problems, "data.train: shard %lld, %.100s, has %lld bytes, had %lld",
                        number, name, (long long)now->file_bytes, (long long)saved->size);
    else if (now->first_hash != saved->first_hash || now->last_hash != saved->last_hash)
        dt_problems_add(problems, "data.train: shard %lld, %.100s, holds other data", number, name);
}

void dt_fingerprints_compare(struct dt_problems *problems, const struct dt_dataset *now,
                             const struct dt_fingerprints *saved)
{
    if (now->n_shards != saved->n)
        dt_problems_add(problems, "data.train has %lld shards, the checkpoint has %lld",
                        (long long)now->n_shards, (long long)saved->n);
    for (int64_t i = 0; i < now->n_shards && i < saved->n; i++)
        compare_shard(problems, &now->shards[i], &saved->shards[i], i);
}
