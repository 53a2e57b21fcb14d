// Writing and strict reading of MANIFEST.
#include "checkpoint/manifest.h"

#include "base/file.h"
#include "base/list.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { HASH_DIGITS = 16, MANIFEST_LIMIT = 1 << 20 }; // bytes of a MANIFEST

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

static dt_status write_text(const char *folder, const char *name, const char *text)
{
    char path[DT_PATH];
    DT_TRY(dt_path(path, "%s/%s", folder, name));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return DT_FAIL_ERRNO("create", path);
    dt_status status = dt_write_all(fd, path, text, (int64_t)strlen(text));
    if (status == DT_OK)
        return dt_close_synced(fd, path);
    close(fd);
    return status;
}

dt_status dt_manifest_put(struct dt_manifest *manifest, const char *folder, const char *name,
                          const char *text)
{
    DT_TRY(write_text(folder, name, text));
    return dt_manifest_add(manifest, name, (int64_t)strlen(text), XXH64(text, strlen(text), 0));
}

dt_status dt_manifest_write(const struct dt_manifest *manifest, const char *folder)
{
    enum { LINE = HASH_DIGITS + 24 + DT_MANIFEST_NAME };
    char *text = malloc((size_t)manifest->n * LINE + 1);
    if (!text)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to write %s/MANIFEST", folder);
    char *end = text;
    *end = '\0';
    for (int i = 0; i < manifest->n; i++) {
        const struct dt_manifest_file *file = &manifest->files[i];
        end += snprintf(end, LINE, "%016" PRIx64 " %" PRId64 " %s\n", file->hash, file->size,
                        file->name);
    }
    dt_status status = write_text(folder, "MANIFEST", text);
    free(text);
    return status;
}

static bool parse_hash(const char **text, uint64_t *hash)
{
    *hash = 0;
    for (int i = 0; i < HASH_DIGITS; i++, (*text)++) {
        char c = **text;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        *hash = *hash << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

static bool parse_size(const char **text, int64_t *size)
{
    const char *start = *text;
    *size = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        if (__builtin_mul_overflow(*size, 10, size) ||
            __builtin_add_overflow(*size, **text - '0', size))
            return false;
    return *text > start && (*start != '0' || *text == start + 1); // one spelling of a number
}

static bool parse_name(const char **text, char *name)
{
    size_t n = strcspn(*text, "\n");
    if (n == 0 || n >= DT_MANIFEST_NAME || (*text)[n] != '\n' || **text == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((*text)[i] == '/' || (*text)[i] <= ' ' || (*text)[i] > '~')
            return false;
    memcpy(name, *text, n);
    name[n] = '\0';
    *text += n + 1;
    return true;
}

static bool parse_blank(const char **text)
{
    return *(*text)++ == ' ';
}

static bool parse_line(const char **text, struct dt_manifest_file *file)
{
    return parse_hash(text, &file->hash) && parse_blank(text) && parse_size(text, &file->size) &&
           parse_blank(text) && parse_name(text, file->name);
}

static dt_status parse(const char *path, const char *text, const char *end,
                       struct dt_manifest *manifest)
{
    for (int line = 1; text < end; line++) {
        struct dt_manifest_file file;
        if (!parse_line(&text, &file))
            return DT_FAIL(DT_USER, "the file is damaged: use another checkpoint",
                           "%s:%d: not a line of 16 hex digits, a size and a file's name", path,
                           line);
        if (dt_manifest_find(manifest, file.name))
            return DT_FAIL(DT_USER, "the file is damaged: use another checkpoint",
                           "%s:%d: %s is listed twice", path, line, file.name);
        DT_TRY(dt_manifest_add(manifest, file.name, file.size, file.hash));
    }
    return DT_OK;
}

dt_status dt_manifest_read(const char *folder, struct dt_manifest *manifest)
{
    char path[DT_PATH], *text;
    int64_t size;
    *manifest = (struct dt_manifest){0};
    DT_TRY(dt_path(path, "%s/MANIFEST", folder));
    DT_TRY(dt_read_file(path, MANIFEST_LIMIT, &text, &size));
    dt_status status = parse(path, text, text + size, manifest);
    free(text);
    if (status != DT_OK)
        dt_manifest_free(manifest);
    return status;
}
