// Captures what this process writes to stderr in a pipe.
#pragma once

#include "test.h"

static int captured_ends[2], captured_stderr;

// Makes `fd` the standard error of this process.
static inline void replace_stderr(int fd)
{
    captured_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
}

static inline void restore_stderr(void)
{
    dup2(captured_stderr, STDERR_FILENO);
    close(captured_stderr);
}

// Reads what is waiting in the non-blocking `fd`: at most 64 KiB, valid until the next call.
static inline const char *drain(int fd)
{
    static char text[1 << 16];
    size_t used = 0;
    ssize_t n;
    while (used < sizeof text - 1 && (n = read(fd, text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = 0;
    return text;
}

static inline void capture_stderr(void)
{
    setenv("COLUMNS", "1000", 1); // messages are compared as whole lines
    CHECK(pipe2(captured_ends, O_NONBLOCK) == 0, "no pipe");
    replace_stderr(captured_ends[1]);
}

// Ends capturing, and returns what was written since the last drain(captured_ends[0]).
static inline const char *captured(void)
{
    restore_stderr();
    const char *text = drain(captured_ends[0]);
    close(captured_ends[0]);
    close(captured_ends[1]);
    return text;
}
