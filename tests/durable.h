// Logs the calls that make files durable, in order: "fsync NAME", "rename NAME" and "exchange
// NAME", where NAME is the last part of the path. These functions replace those of libc in the
// program that includes this header.
#pragma once

#include "base/file.h"
#include "base/text.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char durable[1024];
static int fail_rename; // the n-th rename from now on fails, as on a full disk; 0: none fails

static inline void note_call(const char *call, const char *path)
{
    const char *slash = strrchr(path, '/');
    dt_append(durable, sizeof durable, "%s %s\n", call, slash ? slash + 1 : path);
}

int fsync(int fd)
{
    char link[64], path[DT_PATH] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    CHECK(readlink(link, path, sizeof path - 1) > 0, "no path of %d", fd);
    note_call("fsync", path);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    note_call("rename", to);
    if (fail_rename > 0 && --fail_rename == 0) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    note_call("exchange", to);
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}
