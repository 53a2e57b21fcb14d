// A scratch folder, created at the start of a test and removed at its end, and functions on files
// in it.
#pragma once

#include "base/error.h"
#include "base/file.h"
#include "test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

static char scratch[256];

// Creates the folder in $TMPDIR. May be called again after remove_scratch.
static inline void make_scratch(void)
{
    const char *parent = getenv("TMPDIR");
    int length = snprintf(scratch, sizeof scratch, "%s/dt-test-XXXXXX",
                          parent && *parent ? parent : P_tmpdir);
    if (length >= (int)sizeof scratch || !mkdtemp(scratch)) {
        perror(scratch);
        exit(1);
    }
}

static inline void remove_scratch(void)
{
    CHECK_OK(dt_remove_tree(scratch));
}

// Returns a path in the scratch folder. Only the last LIVE paths stay valid.
__attribute__((format(printf, 1, 2))) static inline const char *in_scratch(const char *format, ...)
{
    enum { LIVE = 4096 };
    static char path[LIVE][DT_PATH];
    static int next;
    char name[DT_PATH];
    va_list values;
    if (scratch[0] == 0) { // the path would be in the root of the file system
        fprintf(stderr, "in_scratch before make_scratch\n");
        abort();
    }
    va_start(values, format);
    vsnprintf(name, sizeof name, format, values);
    va_end(values);
    next = (next + 1) % LIVE;
    CHECK_OK(dt_path(path[next], "%s/%s", scratch, name));
    return path[next];
}

// Writes a file without a sync, which dtrain would do: tests damage hundreds of files.
static inline void put_bytes(const char *path, const void *bytes, int64_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, (size_t)size, file) == (size_t)size && fclose(file) == 0,
          "cannot write %s", path);
}

static inline void put_text(const char *path, const char *text)
{
    put_bytes(path, text, (int64_t)strlen(text));
}

static inline char *get_text(const char *path)
{
    char *text = NULL;
    int64_t size;
    CHECK_OK(dt_read_file(path, 1 << 24, &text, &size));
    return text;
}

// Makes writes beyond this size of a file fail, as on a full disk; RLIM_INFINITY lifts the limit.
static inline void limit_file_size(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN); // write then returns EFBIG
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static inline void flip_bit(const char *path, int64_t offset)
{
    FILE *file = fopen(path, "r+b");
    int byte = file && fseek(file, offset, SEEK_SET) == 0 ? fgetc(file) : EOF;
    CHECK(byte != EOF && fseek(file, offset, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF,
          "no byte %ld in %s", (long)offset, path);
    if (file)
        fclose(file);
}
