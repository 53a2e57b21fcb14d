// Looks at processes by /proc/PID/stat (proc(5)): field 3 is the state, field 22 the start time.
#include "comm/process.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// Reads a small file into text[0, size), zero-terminated; false on failure.
static bool read_small(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    if (fd < 0)
        return false;
    n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

static bool read_stat(int pid, char *state, uint64_t *started)
{
    char path[64], text[1024], *p;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_small(path, text, sizeof text) || !(p = strrchr(text, ')')))
        return false; // the name in field 2 may contain blanks and parentheses
    *state = p[1] ? p[2] : 0;
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (!p)
        return false;
    *started = strtoull(p + 1, NULL, 10);
    return true;
}

struct dt_process dt_process_self(void)
{
    struct dt_process self = {.pid = (int32_t)getpid()};
    struct stat space;
    char boot[64], state;
    if (stat("/proc/self/ns/pid", &space) != 0 ||
        !read_small("/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        !read_stat(self.pid, &state, &self.started))
        return self;
    self.space = XXH64(boot, strlen(boot), space.st_ino);
    return self;
}

enum dt_process_state dt_process_look(const struct dt_process *process)
{
    char state;
    uint64_t started;
    if (!read_stat(process->pid, &state, &started) || started != process->started || state == 'Z' ||
        state == 'X')
        return DT_PROCESS_GONE;
    return state == 'T' ? DT_PROCESS_STOPPED : DT_PROCESS_RUNS;
}
