// Writes messages and the live line to stderr, under one lock. A message is one write(2), which
// also clears the live line and draws it again.
#include "base/log.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LIVE_BYTES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool silent, assumed;
static char live[LIVE_BYTES]; // the current live line, or ""

void dt_log_quiet(bool quiet)
{
    atomic_store(&silent, quiet);
}

// The terminal to which mpirun, this rank's parent, writes; -1: none. Opens a pipe without waiting
// for its reader.
static int open_launchers_terminal(void)
{
    char path[64];
    if (!getenv("OMPI_COMM_WORLD_RANK"))
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), STDERR_FILENO);
    int fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && !isatty(fd)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// Columns of the terminal that stderr writes to; 0 if it is no terminal.
static int terminal_columns(void)
{
    struct winsize window;
    int fd = isatty(STDERR_FILENO) ? STDERR_FILENO : open_launchers_terminal();
    if (fd < 0)
        return 0;
    int columns = ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    if (fd != STDERR_FILENO)
        close(fd);
    return columns;
}

bool dt_log_is_terminal(void)
{
    return atomic_load(&assumed) || terminal_columns() > 0;
}

int dt_log_columns(void)
{
    int columns = terminal_columns();
    columns = columns > 0 ? columns : dt_columns();
    return columns > DT_LOG_LEAST_COLUMNS ? columns : DT_LOG_LEAST_COLUMNS;
}

void dt_log_assume_terminal(void)
{
    atomic_store(&assumed, true);
}

// Usually one write. A lost message must not stop training.
static void put(const char *text, size_t size)
{
    while (size > 0) {
        ssize_t n = write(STDERR_FILENO, text, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        text += n;
        size -= (size_t)n;
    }
}

// The wrapped message, with the codes that clear and redraw the live line. Caller frees; NULL: out
// of memory.
static char *message_text(const char *prefix, const char *message)
{
    // A line break replaces at least one blank by a newline and DT_LOG_INDENT blanks.
    size_t size = sizeof live + strlen(prefix) + (DT_LOG_INDENT + 1) * strlen(message) + 16;
    char *text = malloc(size);
    if (!text)
        return NULL;
    snprintf(text, size, "%s%s", live[0] ? "\r\033[K" : "", prefix);
    dt_append_wrapped(text, size, message, dt_text_width(prefix), DT_LOG_INDENT, dt_log_columns());
    dt_append(text, size, "\n%s", live);
    return text;
}

void dt_log_message(const char *prefix, const char *format, ...)
{
    int saved_errno = errno;
    char *message, *text;
    va_list args;
    va_start(args, format);
    if (!atomic_load(&silent) && vasprintf(&message, format, args) >= 0) {
        pthread_mutex_lock(&lock);
        text = message_text(prefix, message);
        if (text)
            put(text, strlen(text));
        free(text);
        pthread_mutex_unlock(&lock);
        free(message);
    }
    va_end(args);
    errno = saved_errno;
}

bool dt_log_due(double *next)
{
    double now = dt_seconds();
    bool due = *next > 0 && now >= *next;
    if (due || *next == 0)
        *next = now + 2;
    return due;
}

// Copies `line` to live[] without cutting UTF-8 characters, each one column wide. Uses one column
// less than the terminal has, because a full line would wrap on some terminals.
static void set_live(const char *line)
{
    int columns = terminal_columns();
    columns = columns > 0 ? columns - 1 : 79;
    size_t used = 0;
    for (const char *p = line; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool starts_character = (c & 0xc0) != 0x80;
        if (starts_character && (columns-- <= 0 || used + 4 >= sizeof live))
            break;
        if (used + 1 == sizeof live)
            break;
        live[used++] = c < 0x20 || c == 0x7f ? ' ' : *p;
    }
    live[used] = 0;
}

void dt_log_live(const char *line)
{
    char text[LIVE_BYTES + 8];
    if (atomic_load(&silent) || !dt_log_is_terminal())
        return;
    pthread_mutex_lock(&lock);
    if (line || live[0]) {
        set_live(line ? line : "");
        snprintf(text, sizeof text, "\r\033[K%s", live);
        put(text, strlen(text));
    }
    pthread_mutex_unlock(&lock);
}
