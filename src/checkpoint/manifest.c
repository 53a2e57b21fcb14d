// Writes MANIFEST, reads it strictly, and checks the files that it lists.
#include "checkpoint/manifest.h"

#include "base/file.h"
#include "base/list.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LINE = 48 + DT_MANIFEST_NAME, MANIFEST_LIMIT = 1 << 20 }; // bytes

void dt_manifest_free(struct dt_manifest *manifest)
{
    free(manifest->files);
    *manifest = (struct dt_manifest){0};
}

const struct dt_manifest_file *dt_manifest_find(const struct dt_manifest *manifest,
                                                const char *name)
{
    for (int i = 0; i < manifest->n; i++)
        if (strcmp(manifest->files[i].name, name) == 0)
            return &manifest->files[i];
    return NULL;
}

dt_status dt_manifest_add(struct dt_manifest *manifest, const char *name, int64_t size,
                          uint64_t hash)
{
    struct dt_manifest_file file = {.size = size, .hash = hash};
    if (snprintf(file.name, sizeof file.name, "%s", name) >= (int)sizeof file.name)
        return DT_FAIL(DT_USER, NULL, "the file name %.100s has more than %d bytes", name,
                       DT_MANIFEST_NAME - 1);
    DT_TRY(dt_list_grow(&manifest->files, manifest->n, sizeof file));
    manifest->files[manifest->n++] = file;
    return DT_OK;
}

static dt_status write_file(const char *folder, const char *name, const char *data, int64_t size)
{
    char path[DT_PATH];
    DT_TRY(dt_path(path, "%s/%s", folder, name));
    return dt_write_synced(path, data, size);
}

dt_status dt_manifest_put(struct dt_manifest *manifest, const char *folder, const char *name,
                          const char *data, int64_t size)
{
    DT_TRY(write_file(folder, name, data, size));
    return dt_manifest_add(manifest, name, size, XXH64(data, (size_t)size, 0));
}

static int print_line(char line[LINE], const struct dt_manifest_file *file)
{
    return snprintf(line, LINE, "%016" PRIx64 " %" PRId64 " %s\n", file->hash, file->size,
                    file->name);
}

dt_status dt_manifest_write(const struct dt_manifest *manifest, const char *folder)
{
    char *text, *end;
    DT_TRY(DT_NEW(&text, (manifest->n + 1) * LINE, "%s/MANIFEST", folder));
    end = text;
    for (int i = 0; i < manifest->n; i++)
        end += print_line(end, &manifest->files[i]);
    dt_status status = write_file(folder, "MANIFEST", text, end - text);
    free(text);
    return status;
}

// A line must be identical when printed again, so that each number has one spelling.
static bool parse_line(const char **text, struct dt_manifest_file *file)
{
    char again[LINE], *name;
    file->hash = strtoull(*text, &name, 16);
    file->size = strtoll(name, &name, 10);
    name += *name == ' ';
    size_t n = strcspn(name, "\n");
    if (file->size < 0 || n == 0 || n >= DT_MANIFEST_NAME || *name == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] <= ' ' || name[i] > '~')
            return false;
    snprintf(file->name, sizeof file->name, "%.*s", (int)n, name);
    int length = print_line(again, file);
    if (strncmp(*text, again, (size_t)length) != 0)
        return false;
    *text += length;
    return true;
}

dt_status dt_manifest_read(const char *folder, struct dt_manifest *manifest)
{
    char path[DT_PATH], *text;
    int64_t size;
    *manifest = (struct dt_manifest){0};
    DT_TRY(dt_path(path, "%s/MANIFEST", folder));
    if (!dt_file_exists(path))
        return DT_FAIL(
            DT_USER, "give the folder of a checkpoint, such as runs/NAME/checkpoints/step-00001000",
            "cannot open %s: %s", path, strerror(errno));
    DT_TRY(dt_read_file(path, MANIFEST_LIMIT, &text, &size));
    const char *at = text;
    dt_status status = DT_OK;
    for (int line = 1; at < text + size && status == DT_OK; line++) {
        struct dt_manifest_file file;
        if (!parse_line(&at, &file))
            status =
                DT_FAIL(DT_USER, "the file is damaged: use another checkpoint",
                        "%s:%d: not a line of 16 hex digits, a size and a file name", path, line);
        else if (dt_manifest_find(manifest, file.name))
            status = DT_FAIL(DT_USER, "the file is damaged: use another checkpoint",
                             "%s:%d: %s is listed twice", path, line, file.name);
        else
            status = dt_manifest_add(manifest, file.name, file.size, file.hash);
    }
    free(text);
    if (status != DT_OK)
        dt_manifest_free(manifest);
    return status;
}

dt_status dt_manifest_check(const char *folder, const struct dt_manifest_file *file,
                            struct dt_problems *problems)
{
    char path[DT_PATH];
    uint64_t hash;
    DT_TRY(dt_path(path, "%s/%s", folder, file->name));
    int64_t size = dt_file_size(path);
    if (!dt_file_exists(path)) {
        dt_problems_add(problems, "%s is missing", file->name);
        return DT_OK;
    }
    if (size >= 0 && size != file->size) {
        dt_problems_add(problems, "%s has %lld bytes, MANIFEST says %lld", file->name,
                        (long long)size, (long long)file->size);
        return DT_OK;
    }
    dt_status status = dt_hash_file(path, &hash, NULL);
    if (status == DT_MACHINE)
        return status;
    if (status != DT_OK)
        dt_problems_add(problems, "%s: %.200s", file->name, dt_error_current()->message);
    else if (hash != file->hash)
        dt_problems_add(problems,
                        "%s has hash %016" PRIx64 ", MANIFEST says %016" PRIx64 ": it is damaged",
                        file->name, hash, file->hash);
    dt_error_clear();
    return DT_OK;
}

dt_status dt_manifest_verify(const char *path, const char *const *names)
{
    char there[DT_PATH];
    struct dt_manifest manifest;
    struct dt_problems problems = {0};
    dt_status status = DT_OK;
    DT_TRY(dt_path(there, "%s/MANIFEST", path));
    if (!dt_file_exists(there))
        return DT_OK;
    DT_TRY(dt_manifest_read(path, &manifest));
    for (; *names && status == DT_OK; names++) {
        const struct dt_manifest_file *file = dt_manifest_find(&manifest, *names);
        status =
            file ? dt_manifest_check(path, file, &problems) : dt_path(there, "%s/%s", path, *names);
        if (!file && status == DT_OK && dt_file_exists(there))
            dt_problems_add(&problems, "MANIFEST lacks %s", *names);
    }
    dt_manifest_free(&manifest);
    DT_TRY(status);
    return dt_problems_report(&problems, "use another checkpoint",
                              "the checkpoint %s is incomplete or damaged", path);
}
