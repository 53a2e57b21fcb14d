// Reads a tokenizer's files and finds the ids of its special tokens.
#include "checkpoint/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/manifest.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FILE_LIMIT = 256 << 20 };

// The first one is the tokenizer.
static const char *const names[DT_TOKENIZER_FILES] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
};

bool dt_tokenizer_exists(const char *folder)
{
    char path[DT_PATH];
    return snprintf(path, sizeof path, "%s/%s", folder, names[0]) < (int)sizeof path &&
           dt_file_exists(path);
}

static const struct dt_tokenizer_file *find(const struct dt_tokenizer *tokenizer, const char *name)
{
    for (int i = 0; i < tokenizer->n; i++)
        if (strcmp(tokenizer->files[i].name, name) == 0)
            return &tokenizer->files[i];
    return NULL;
}

static dt_status parse(const struct dt_tokenizer *tokenizer, const char *folder, const char *name,
                       cJSON **json)
{
    const struct dt_tokenizer_file *file = find(tokenizer, name);
    char path[DT_PATH];
    *json = NULL;
    if (!file)
        return DT_OK;
    DT_TRY(dt_path(path, "%s/%s", folder, name));
    return dt_json_parse(path, file->data, file->size, json);
}

// The text of a special token: a string, or an object that has it as "content"; NULL: none.
static const char *text_of(const cJSON *json, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    if (cJSON_IsObject(item))
        item = cJSON_GetObjectItemCaseSensitive(item, "content");
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static int64_t number_of(const cJSON *item) // -1: no id
{
    bool is_id = cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= INT32_MAX;
    return is_id ? (int64_t)item->valuedouble : -1;
}

static int64_t id_of(const cJSON *tokenizer, const char *text)
{
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(tokenizer, "added_tokens"), *item;
    cJSON_ArrayForEach(item, added)
    {
        const char *content = text_of(item, "content");
        if (content && strcmp(content, text) == 0)
            return number_of(cJSON_GetObjectItemCaseSensitive(item, "id"));
    }
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(tokenizer, "model");
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    return number_of(cJSON_GetObjectItemCaseSensitive(vocab, text));
}

static dt_status find_special(struct dt_tokenizer *tokenizer, const char *folder)
{
    const struct {
        const char *name;
        int64_t *id;
    } tokens[] = {{"bos_token", &tokenizer->bos},
                  {"eos_token", &tokenizer->eos},
                  {"pad_token", &tokenizer->pad}};
    cJSON *json = NULL, *config = NULL, *map = NULL;
    dt_status status = parse(tokenizer, folder, names[0], &json);
    if (status == DT_OK)
        status = parse(tokenizer, folder, names[1], &config);
    if (status == DT_OK)
        status = parse(tokenizer, folder, names[2], &map);
    for (int i = 0; i < 3 && status == DT_OK; i++) {
        const char *text = text_of(config, tokens[i].name);
        text = text ? text : text_of(map, tokens[i].name);
        *tokens[i].id = text ? id_of(json, text) : -1;
        if (text && *tokens[i].id < 0)
            status = DT_FAIL(DT_USER, "copy the tokenizer's files again, all from one place",
                             "%s: its %s is '%.64s', which %s does not have", folder,
                             tokens[i].name, text, names[0]);
    }
    cJSON_Delete(json);
    cJSON_Delete(config);
    cJSON_Delete(map);
    return status;
}

static dt_status read_files(const char *folder, struct dt_tokenizer *tokenizer)
{
    for (int i = 0; i < DT_TOKENIZER_FILES; i++) {
        struct dt_tokenizer_file *file = &tokenizer->files[tokenizer->n];
        char path[DT_PATH];
        DT_TRY(dt_path(path, "%s/%s", folder, names[i]));
        if (i > 0 && !dt_file_exists(path))
            continue;
        DT_TRY(dt_read_file(path, FILE_LIMIT, &file->data, &file->size));
        file->name = names[i];
        tokenizer->n++;
    }
    tokenizer->hash = XXH64(tokenizer->files[0].data, (size_t)tokenizer->files[0].size, 0);
    return find_special(tokenizer, folder);
}

dt_status dt_tokenizer_read(const char *folder, struct dt_tokenizer *tokenizer)
{
    *tokenizer = (struct dt_tokenizer){0};
    dt_status status = read_files(folder, tokenizer);
    if (status != DT_OK)
        dt_tokenizer_free(tokenizer);
    return status;
}

void dt_tokenizer_free(struct dt_tokenizer *tokenizer)
{
    for (int i = 0; i < tokenizer->n; i++)
        free(tokenizer->files[i].data);
    *tokenizer = (struct dt_tokenizer){0};
}

dt_status dt_tokenizer_write(const struct dt_tokenizer *tokenizer, struct dt_manifest *manifest,
                             const char *folder)
{
    for (int i = 0; i < tokenizer->n; i++) {
        const struct dt_tokenizer_file *file = &tokenizer->files[i];
        DT_TRY(dt_manifest_put(manifest, folder, file->name, file->data, file->size));
    }
    return DT_OK;
}
