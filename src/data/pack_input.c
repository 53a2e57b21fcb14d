// Finds the files to pack by walking the inputs, and splits them for validation. Links to folders
// are not followed, to avoid loops and duplicates; links to files are.
#include "data/pack_input.h"

#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SNIFF = 8192 }; // bytes that are searched for a zero

struct walk {
    const struct dt_pack_config *config;
    struct dt_pack_files *files;
    bool has_output; // `output` is valid
    struct stat output;
};

// A file that was found in a folder is skipped if it cannot be used; a named one is an error.
static dt_status add_path(struct walk *walk, const char *path, bool named)
{
    struct dt_pack_files *files = walk->files;
    char head[SNIFF];
    int fd;
    int64_t bytes;
    dt_status status = dt_open_read(path, &fd, &bytes);
    if (status != DT_OK && !named) {
        dt_warn("%s, skipped", dt_error_current()->message);
        dt_error_clear();
        files->skipped++;
        return DT_OK;
    }
    DT_TRY(status);
    bool wanted = named || walk->config->format != DT_PACK_TEXT;
    if (!wanted) { // text has no zero byte
        ssize_t n = pread(fd, head, sizeof head, 0);
        wanted = n >= 0 && !memchr(head, 0, (size_t)n);
    }
    close(fd);
    files->skipped += !wanted;
    if (!wanted || bytes == 0)
        return DT_OK;
    DT_TRY(dt_list_grow(&files->at, files->n, sizeof *files->at));
    files->at[files->n] = (struct dt_pack_file){NULL, bytes, 0};
    DT_TRY(dt_memory_text(&files->at[files->n].path, "%s", path));
    files->n++;
    return DT_OK;
}

static dt_status visit(void *context, FTS *tree, FTSENT *entry)
{
    struct walk *walk = context;
    const struct stat *info = entry->fts_statp;
    struct stat target;
    bool named = entry->fts_level == FTS_ROOTLEVEL;
    if (!named && entry->fts_name[0] == '.') {
        fts_set(tree, entry, FTS_SKIP);
        return DT_OK;
    }
    switch (entry->fts_info) {
    case FTS_D:
        if (!named && walk->has_output && info->st_dev == walk->output.st_dev &&
            info->st_ino == walk->output.st_ino)
            fts_set(tree, entry, FTS_SKIP);
        return DT_OK;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        errno = entry->fts_errno;
        if (named)
            return DT_FAIL_ERRNO("read", entry->fts_path);
        dt_warn("cannot read %s: %s, skipped", entry->fts_path, strerror(errno));
        walk->files->skipped++;
        return DT_OK;
    case FTS_F:
        return add_path(walk, entry->fts_path, named);
    case FTS_SL:
        return stat(entry->fts_path, &target) == 0 && S_ISREG(target.st_mode)
                   ? add_path(walk, entry->fts_path, false)
                   : DT_OK;
    case FTS_DEFAULT: // FIFOs, sockets, devices
    case FTS_SLNONE:
        return named ? add_path(walk, entry->fts_path, true) : DT_OK;
    default:
        return DT_OK;
    }
}

dt_status dt_pack_find(const struct dt_pack_config *config, struct dt_pack_files *files)
{
    struct walk walk = {.config = config, .files = files};
    walk.has_output = stat(config->output, &walk.output) == 0;
    for (int i = 0; i < config->n_inputs; i++)
        DT_TRY(dt_walk_tree(config->inputs[i], FTS_COMFOLLOW, "read", visit, &walk));
    if (files->n > 0)
        return DT_OK;
    return DT_FAIL(DT_USER, "name files, or folders with files in them",
                   "nothing to pack in %s%s (%" PRId64 " binary or unreadable files skipped)",
                   config->inputs[0], config->n_inputs > 1 ? " …" : "", files->skipped);
}

void dt_pack_files_free(struct dt_pack_files *files)
{
    for (int64_t i = 0; i < files->n; i++)
        free(files->at[i].path);
    free(files->at);
}

// Draws n_val files without replacement, and moves them, in the order drawn, after the others.
dt_status dt_pack_split(struct dt_pack_files *files, double fraction, uint64_t seed)
{
    int64_t n = files->n, n_val = (int64_t)llround(fraction * (double)n), n_train = 0;
    int64_t *order;
    struct dt_pack_file *sorted;
    DT_TRY(DT_NEW(&order, n, "the order of %" PRId64 " files", n));
    dt_status status = DT_NEW(&sorted, n, "splitting %" PRId64 " files", n);
    if (status != DT_OK) {
        free(order);
        return status;
    }
    struct dt_philox rng = dt_philox_init(seed, 0, 0);
    n_val = n_val < 1 ? 1 : n_val > n - 1 ? n - 1 : n_val;
    for (int64_t i = 0; i < n; i++) {
        order[i] = i;
        files->at[i].train_bytes = files->at[i].bytes;
    }
    for (int64_t i = 0; i < n_val; i++) {
        int64_t j = i + (int64_t)dt_philox_below(&rng, (uint64_t)(n - i)), chosen = order[j];
        order[j] = order[i];
        order[i] = chosen;
        files->at[chosen].train_bytes = 0;
        sorted[n - n_val + i] = files->at[chosen];
    }
    for (int64_t i = 0; i < n; i++)
        if (files->at[i].train_bytes > 0)
            sorted[n_train++] = files->at[i];
    free(order);
    free(files->at);
    files->at = sorted;
    return DT_OK;
}
