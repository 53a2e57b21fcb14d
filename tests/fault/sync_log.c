// For LD_PRELOAD: appends "fsync PATH" and "rename NEW" to the file SYNC_LOG, in the order of the
// calls, which a power loss must not reorder. A slow disk: each fsync lasts SYNC_MS more.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd);
int rename(const char *from, const char *to);

static void note(const char *what, const char *path)
{
    char line[8192];
    const char *log = getenv("SYNC_LOG");
    if (!log)
        return;
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int size = snprintf(line, sizeof line, "%s %s\n", what, path);
    if (out < 0 || write(out, line, (size_t)size) != size)
        _exit(99);
    close(out);
}

int fsync(int fd)
{
    char link[64], path[4096];
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    if (getenv("SYNC_MS"))
        usleep(1000 * (unsigned)atoi(getenv("SYNC_MS")));
    int code = next(fd);
    note("fsync", path);
    return code;
}

int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    note("rename", to);
    return next(from, to);
}
