// Packs files into shards: finds the files, divides them into training and validation, streams each
// side into shards under temporary names, then renames all shards. Memory does not grow with the
// corpus.
#include "data/packer.h"

#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"
#include "data/columns.h"
#include "data/tokens.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SNIFF = 8192 }; // bytes searched for a zero
enum { BYTE_VOCAB = 256, NAME = 64 };
static const char *const side_name[DT_SIDES] = {"train", "val"};

// ---- the files

struct walk {
    const struct dt_pack_config *config;
    struct dt_pack_files *files;
    bool has_output; // `output` is valid
    struct stat output;
};

// NAME.fa, .fasta, .fna or .ffn, optionally followed by .gz.
static bool is_fasta_name(const char *path)
{
    size_t n = strlen(path);
    n -= n > 3 && strcmp(path + n - 3, ".gz") == 0 ? 3 : 0;
    for (const char *const *end = (const char *const[]){".fa", ".fasta", ".fna", ".ffn", NULL};
         *end; end++)
        if (n > strlen(*end) && strncmp(path + n - strlen(*end), *end, strlen(*end)) == 0)
            return true;
    return false;
}

// An unusable file is skipped if found in a folder, and an error if named.
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
    bool wanted = true;
    if (!named && walk->config->format == DT_PACK_TEXT) { // text has no zero byte
        ssize_t n = pread(fd, head, sizeof head, 0);
        wanted = n >= 0 && !memchr(head, 0, (size_t)n);
    } else if (!named && walk->config->format == DT_PACK_FASTA) {
        wanted = is_fasta_name(path);
    }
    close(fd);
    files->skipped += !wanted;
    if (!wanted || bytes == 0)
        return DT_OK;
    DT_TRY(dt_list_grow(&files->at, files->n, sizeof *files->at));
    files->at[files->n] = (struct dt_pack_input){NULL, bytes, 0};
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

// Finds all non-empty regular files of the inputs in order; files in folders in bytewise order of
// names, without the output folder. Follows links to files, but not to folders, to avoid loops and
// duplicates.
static dt_status find_files(const struct dt_pack_config *config, struct dt_pack_files *files)
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

int64_t dt_packer_draw(uint64_t seed, double fraction, int64_t n, int64_t *order)
{
    struct dt_philox rng = dt_philox_init(seed, 0, 0);
    int64_t n_val = dt_min_i64(dt_max_i64(llround(fraction * (double)n), 1), n - 1);
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = 0; i < n_val; i++) {
        int64_t j = i + (int64_t)dt_philox_below(&rng, (uint64_t)(n - i)), chosen = order[j];
        order[j] = order[i];
        order[i] = chosen;
    }
    return n_val;
}

// Divides by file: files drawn for validation are moved to the end in the order drawn, so that the
// first ones, which short evaluations read, are a random sample; the others keep their order.
static dt_status split_files(struct dt_pack_files *files, double fraction, uint64_t seed)
{
    int64_t n = files->n, n_train = 0;
    int64_t *order;
    struct dt_pack_input *sorted;
    DT_TRY(DT_NEW(&order, n, "the order of %" PRId64 " files", n));
    dt_status status = DT_NEW(&sorted, n, "splitting %" PRId64 " files", n);
    if (status != DT_OK) {
        free(order);
        return status;
    }
    int64_t n_val = dt_packer_draw(seed, fraction, n, order);
    for (int64_t i = 0; i < n; i++)
        files->at[i].train_bytes = files->at[i].bytes;
    for (int64_t i = 0; i < n_val; i++) {
        files->at[order[i]].train_bytes = 0;
        sorted[n - n_val + i] = files->at[order[i]];
    }
    for (int64_t i = 0; i < n; i++)
        if (files->at[i].train_bytes > 0)
            sorted[n_train++] = files->at[i];
    free(order);
    free(files->at);
    files->at = sorted;
    return DT_OK;
}

// ---- the shards

// "train-00000.h5", or ".train-00000.h5.tmp".
static void shard_name(int side, int64_t i, bool temporary, char name[NAME])
{
    snprintf(name, NAME, "%s%s-%05" PRId64 ".h5%s", temporary ? "." : "", side_name[side], i,
             temporary ? ".tmp" : "");
}

static dt_status shard_path(const struct dt_packer *packer, int side, int64_t i, bool temporary,
                            char *path)
{
    char name[NAME];
    shard_name(side, i, temporary, name);
    return dt_path(path, "%s/%s", packer->config->output, name);
}

void dt_packer_progress(struct dt_packer *packer)
{
    enum { CELLS = 30 };
    char bar[CELLS + 1] = "", line[160];
    double now = dt_seconds(), done = (double)packer->done;
    if (!packer->config->progress || now - packer->drawn < 0.1)
        return;
    packer->drawn = now;
    double part = done / (double)packer->total, rate = done / (now - packer->started + 1e-9);
    for (int i = 0; i < CELLS; i++)
        bar[i] = i < part * CELLS ? '#' : '.';
    snprintf(line, sizeof line, "packing [%s] %3.0f %%  %.0f/%.0f MB  %.0f MB/s  %.0f s left", bar,
             100 * part, done / 1e6, (double)packer->total / 1e6, rate / 1e6,
             ((double)packer->total - done) / (rate + 1));
    dt_log_live(line);
}

// Draws the rows of a task for training.
static dt_status divide_rows(struct dt_packer *packer)
{
    const struct dt_pack_config *config = packer->config;
    int64_t val = (int64_t)(config->val_fraction * (double)config->rows), row;
    DT_TRY(config->task->check(&config->shape));
    if (config->rows < 1 || config->shape.vocab > INT32_MAX ||
        __builtin_mul_overflow(config->shape.length, 2 * packer->size, &row))
        return DT_FAIL(DT_USER, "give smaller numbers", "--rows, --length or --vocab is too large");
    packer->side[DT_TRAIN].tokens = config->rows - val;
    packer->side[DT_VAL].tokens = val;
    packer->total = config->rows;
    return DT_NEW(&packer->scratch, config->shape.length + config->shape.vocab + 1,
                  "numbers of a task");
}

// Decides how many bytes of each file are for training; the rest is for validation.
static dt_status divide(struct dt_packer *packer)
{
    const struct dt_pack_config *config = packer->config;
    struct dt_pack_files *files = &packer->files;
    for (int64_t i = 0; i < files->n; i++) {
        const struct dt_pack_input *file = &files->at[i];
        if (file->bytes % packer->size != 0)
            return DT_FAIL(DT_USER, "choose the --format that the file was written in",
                           "%s has %" PRId64 " bytes, not a multiple of %" PRId64, file->path,
                           file->bytes, packer->size);
        packer->total += file->bytes;
    }
    if (config->format == DT_PACK_TEXT && files->n > 1 && config->val_fraction > 0) {
        DT_TRY(split_files(files, config->val_fraction, config->seed));
    } else {
        int64_t tokens = packer->total / packer->size;
        int64_t train = tokens - (int64_t)(config->val_fraction * (double)tokens);
        int64_t left = train * packer->size;
        for (int64_t i = 0; i < files->n; i++) {
            struct dt_pack_input *file = &files->at[i];
            file->train_bytes = dt_min_i64(left, file->bytes);
            left -= file->train_bytes;
        }
    }
    for (int64_t i = 0; i < files->n; i++) {
        const struct dt_pack_input *file = &files->at[i];
        packer->side[DT_TRAIN].tokens += file->train_bytes / packer->size;
        packer->side[DT_VAL].tokens += (file->bytes - file->train_bytes) / packer->size;
    }
    return DT_OK;
}

// What to do with shards in the output folder.
enum sweep { SWEEP_REFUSE, SWEEP_TEMPORARY, SWEEP_STALE };

static dt_status sweep_output(const struct dt_packer *packer, enum sweep sweep)
{
    const char *output = packer->config->output;
    DIR *folder = opendir(output);
    if (!folder)
        return DT_FAIL_ERRNO("read folder", output);
    dt_status status = DT_OK;
    for (struct dirent *entry; status == DT_OK && (entry = readdir(folder));) {
        const char *name = entry->d_name, *dash = strchr(name, '-');
        char path[DT_PATH], again[NAME] = "";
        int64_t i = dash ? strtoll(dash + 1, NULL, 10) : 0;
        int side = -1;
        while (strcmp(name, again) != 0 && ++side < DT_SIDES)
            shard_name(side, i, sweep == SWEEP_TEMPORARY, again);
        if (side == DT_SIDES || (sweep == SWEEP_STALE && i < packer->side[side].n_shards))
            continue;
        if (sweep == SWEEP_REFUSE)
            status = DT_FAIL(DT_USER, "choose another folder, or replace them with --force",
                             "%s already contains shards (%s)", output, name);
        else if ((status = dt_path(path, "%s/%s", output, name)) == DT_OK && unlink(path) != 0 &&
                 errno != ENOENT)
            status = DT_FAIL_ERRNO("remove", path);
    }
    closedir(folder);
    return status;
}

// The path of a side's next shard, and its number of tokens.
static dt_status next_shard(struct dt_packer *packer, int side, char *path, int64_t *tokens)
{
    struct dt_pack_side *s = &packer->side[side];
    DT_TRY(shard_path(packer, side, s->created, true, path));
    *tokens = s->tokens / s->n_shards + (s->created < s->tokens % s->n_shards);
    s->created++;
    return DT_OK;
}

static dt_status begin_shard(struct dt_packer *packer, int side)
{
    struct dt_pack_side *s = &packer->side[side];
    char path[DT_PATH];
    if (s->writer)
        return DT_OK;
    DT_TRY(next_shard(packer, side, path, &s->left));
    return dt_shard_create(path, packer->type, s->left, &s->writer);
}

static bool has_documents(const struct dt_packer *packer)
{
    return packer->config->format == DT_PACK_TEXT || packer->config->format == DT_PACK_FASTA;
}

struct task_rows {
    struct dt_packer *packer;
    int side;
    int64_t first; // the side's row that is first in the shard
};

static void fill_rows(void *context, int64_t first, int64_t n, int32_t *ids, int32_t *labels)
{
    const struct task_rows *rows = context;
    struct dt_packer *packer = rows->packer;
    const struct dt_pack_config *config = packer->config;
    int64_t length = config->shape.length;
    for (int64_t i = 0; i < n; i++)
        config->task->fill(&config->shape, config->seed, rows->side, rows->first + first + i,
                           ids + i * length, labels + i * length, packer->scratch);
    packer->done += n;
    dt_packer_progress(packer);
}

static dt_status write_rows(struct dt_packer *packer, int side)
{
    struct task_rows rows = {.packer = packer, .side = side};
    const struct dt_pack_side *s = &packer->side[side];
    char path[DT_PATH];
    for (int64_t n = 0; s->created < s->n_shards; rows.first += n) {
        DT_TRY(next_shard(packer, side, path, &n));
        DT_TRY(
            dt_pairs_write(path, packer->type, n, packer->config->shape.length, fill_rows, &rows));
    }
    return DT_OK;
}

dt_status dt_packer_start_document(struct dt_packer *packer, int side)
{
    DT_TRY(begin_shard(packer, side));
    return dt_shard_start_document(packer->side[side].writer);
}

dt_status dt_packer_append(struct dt_packer *packer, int side, const void *tokens, int64_t n)
{
    struct dt_pack_side *s = &packer->side[side];
    for (const char *from = tokens; n > 0;) {
        DT_TRY(begin_shard(packer, side));
        int64_t some = dt_min_i64(n, s->left);
        DT_TRY(dt_shard_append(s->writer, from, some));
        from += some * packer->size;
        n -= some;
        s->left -= some;
        if (s->left == 0) {
            struct dt_shard_writer *writer = s->writer;
            s->writer = NULL;
            DT_TRY(dt_shard_finish(writer, has_documents(packer)));
        }
    }
    return DT_OK;
}

static dt_status pack_bytes(struct dt_packer *packer, int side, const struct dt_pack_input *file,
                            int fd)
{
    int64_t end = side == DT_TRAIN ? file->train_bytes : file->bytes, bytes;
    int64_t vocab_size = packer->config->vocab_size;
    for (int64_t at = side == DT_TRAIN ? 0 : file->train_bytes; at < end; at += bytes) {
        bytes = dt_min_i64(end - at, DT_PACK_CHUNK);
        if (at == 0 && has_documents(packer))
            DT_TRY(dt_packer_start_document(packer, side));
        DT_TRY(dt_pread_all(fd, file->path, packer->chunk, bytes, at));
        int64_t n = bytes / packer->size, i = n;
        packer->largest =
            dt_max_i64(packer->largest, (int64_t)dt_tokens_largest(packer->type, packer->chunk, n));
        if (vocab_size > 0 && packer->largest >= vocab_size)
            i = dt_tokens_find(packer->type, packer->chunk, n, vocab_size);
        if (i < n)
            return DT_FAIL(DT_USER, "give a larger --vocab, or leave it out",
                           "%s: token %" PRId64 " is %" PRId64
                           ", outside the vocabulary of %" PRId64,
                           file->path, at / packer->size + i,
                           dt_columns_integer(packer->type, packer->chunk, i), vocab_size);
        DT_TRY(dt_packer_append(packer, side, packer->chunk, n));
        packer->done += bytes;
        dt_packer_progress(packer);
    }
    return DT_OK;
}

static dt_status write_files(struct dt_packer *packer, int side)
{
    dt_status status = DT_OK;
    for (int64_t i = 0; i < packer->files.n && status == DT_OK; i++) {
        const struct dt_pack_input *file = &packer->files.at[i];
        int64_t bytes;
        int fd;
        if (file->train_bytes == (side == DT_TRAIN ? 0 : file->bytes))
            continue; // nothing for this side
        DT_TRY(dt_open_read(file->path, &fd, &bytes));
        status = pack_bytes(packer, side, file, fd);
        close(fd);
    }
    return status;
}

static dt_status write_sides(struct dt_packer *packer)
{
    if (packer->config->format == DT_PACK_FASTA)
        return dt_fasta_write(packer);
    for (int side = 0; side < DT_SIDES; side++)
        DT_TRY((packer->config->task ? write_rows : write_files)(packer, side));
    return DT_OK;
}

static int64_t vocabulary(const struct dt_packer *packer)
{
    if (packer->config->task)
        return packer->config->shape.vocab;
    if (packer->config->vocab_size > 0)
        return packer->config->vocab_size;
    if (packer->config->format == DT_PACK_FASTA)
        return DT_DNA_VOCAB;
    return packer->type == DT_U8 ? BYTE_VOCAB : packer->largest + 1;
}

// All files are complete and only renamed, so publishing cannot run out of space.
static dt_status publish(struct dt_packer *packer)
{
    const struct dt_shard_attributes attributes = {
        .vocab_size = vocabulary(packer),
        .tokenizer = packer->config->tokenizer,
        .complement = packer->config->format == DT_PACK_FASTA ? dt_dna_complement : NULL,
    };
    char from[DT_PATH], to[DT_PATH];
    for (int side = 0; side < DT_SIDES; side++)
        for (int64_t i = 0; i < packer->side[side].n_shards; i++) {
            DT_TRY(shard_path(packer, side, i, true, from));
            DT_TRY(dt_shard_set_attributes(from, packer->config->task ? "/input_ids" : "/tokens",
                                           &attributes));
        }
    for (int side = 0; side < DT_SIDES; side++)
        for (int64_t i = 0; i < packer->side[side].n_shards; i++) {
            DT_TRY(shard_path(packer, side, i, true, from));
            DT_TRY(shard_path(packer, side, i, false, to));
            if (rename(from, to) != 0)
                return DT_FAIL_ERRNO("rename a shard to", to);
        }
    DT_TRY(sweep_output(packer, SWEEP_STALE));
    return dt_fsync_dir(packer->config->output);
}

static dt_status write_output(struct dt_packer *packer)
{
    DT_TRY(dt_make_dirs(packer->config->output));
    DT_TRY(sweep_output(packer, SWEEP_TEMPORARY)); // left by a killed run
    dt_status status = write_sides(packer);
    for (int side = 0; side < DT_SIDES; side++) {
        dt_shard_abandon(packer->side[side].writer);
        packer->side[side].writer = NULL;
    }
    if (status == DT_OK)
        status = publish(packer);
    if (status != DT_OK) {
        struct dt_error first;
        dt_error_take(&first);
        sweep_output(packer, SWEEP_TEMPORARY);
        dt_error_restore(&first);
    }
    return status;
}

static dt_status pack(struct dt_packer *packer)
{
    const struct dt_pack_config *config = packer->config;
    if (config->n_inputs < 1 && !config->task)
        return DT_FAIL(DT_USER, "name files or folders", "no input given");
    if (!(config->val_fraction >= 0 && config->val_fraction < 1))
        return DT_FAIL(DT_USER, "give a fraction of at least 0 and below 1",
                       "the validation fraction is %g", config->val_fraction);
    if (config->shard_bytes < (int64_t)sizeof(uint32_t))
        return DT_FAIL(DT_USER, "give a larger size", "shards of %" PRId64 " bytes are too small",
                       config->shard_bytes);
    bool was_there = dt_file_exists(config->output);
    int64_t unit = packer->size; // bytes per unit of side.tokens
    if (was_there && !config->force)
        DT_TRY(sweep_output(packer, SWEEP_REFUSE));
    packer->started = packer->drawn = dt_seconds();
    DT_TRY(DT_NEW(&packer->chunk, DT_PACK_CHUNK, "a buffer"));
    if (config->task) {
        DT_TRY(divide_rows(packer));
        unit *= 2 * config->shape.length; // input_ids and labels
    } else {
        DT_TRY(find_files(config, &packer->files));
        DT_TRY(config->format == DT_PACK_FASTA ? dt_fasta_scan(packer) : divide(packer));
    }
    for (int side = 0; side < DT_SIDES; side++)
        packer->side[side].n_shards =
            dt_ceil_div(packer->side[side].tokens, dt_max_i64(config->shard_bytes / unit, 1));
    dt_status status = write_output(packer);
    if (status != DT_OK && !was_there)
        rmdir(config->output); // if empty
    return status;
}

dt_status dt_pack(const struct dt_pack_config *config, struct dt_pack_result *result)
{
    static const dt_dtype types[] = {
        [DT_PACK_TEXT] = DT_U8, [DT_PACK_U8] = DT_U8,    [DT_PACK_U16] = DT_U16,
        [DT_PACK_U32] = DT_U32, [DT_PACK_FASTA] = DT_U8,
    };
    struct dt_packer packer = {.config = config, .type = types[config->format]};
    if (config->task) // labels may be DT_IGNORED
        packer.type = config->shape.vocab <= INT8_MAX + 1    ? DT_I8
                      : config->shape.vocab <= INT16_MAX + 1 ? DT_I16
                                                             : DT_I32;
    packer.size = dt_dtype_size(packer.type);
    dt_status status = pack(&packer);
    dt_log_live(NULL);
    *result = (struct dt_pack_result){
        .files = packer.files.n,
        .train_tokens = packer.side[DT_TRAIN].tokens,
        .val_tokens = packer.side[DT_VAL].tokens,
        .train_shards = packer.side[DT_TRAIN].n_shards,
        .val_shards = packer.side[DT_VAL].n_shards,
        .vocab_size = vocabulary(&packer),
    };
    dt_fasta_free(packer.fasta);
    free(packer.chunk);
    free(packer.scratch);
    for (int64_t i = 0; i < packer.files.n; i++)
        free(packer.files.at[i].path);
    free(packer.files.at);
    return status;
}
