// repeat ROUNDS: runs commands in one process several times and reports what they left behind:
// descriptors, identifiers of libhdf5, threads, memory of dtrain. Each line of the standard input
// is the arguments of a command. {} stands for the number of the round; "! " before the arguments
// marks a command that must be refused.
#include "base/log.h"
#include "cmd/cmd.h"
#include "counted.h"
#include "test.h"

#include <hdf5.h>

enum { COMMANDS = 64, WORDS = 32, LINE = 1024 };

struct held {
    long long descriptors, identifiers, threads, bytes;
};

// Counts what is open in libhdf5: files and objects in files, and the spaces, types and property
// lists that were made since the last call, which the library numbers one after another.
static long long count_identifiers(void)
{
    static hid_t last[3];
    const hid_t now[] = {H5Screate(H5S_NULL), H5Tcopy(H5T_NATIVE_INT), H5Pcreate(H5P_FILE_ACCESS)};
    long long n = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    for (int i = 0; i < 3; i++) {
        for (hid_t id = last[i] + 1; last[i] > 0 && id < now[i]; id++)
            n += H5Iis_valid(id) > 0;
        last[i] = now[i];
        H5Idec_ref(now[i]);
    }
    return n;
}

static struct held count_held(void)
{
    struct held held = {
        .threads = thread_count(),
        .identifiers = count_identifiers(),
        .bytes = counted_bytes,
    };
    for (int fd = 0; fd < TEST_DESCRIPTORS; fd++)
        held.descriptors += fcntl(fd, F_GETFD) >= 0;
    return held;
}

static void run(const char *line, int round)
{
    char text[LINE], number[16], *words[WORDS], *rest = NULL;
    int n = 0;
    struct dt_call call = {0};
    struct dt_comm *comm = NULL;
    const bool refused = strncmp(line, "! ", 2) == 0;
    line += refused ? 2 : 0;
    snprintf(number, sizeof number, "%d", round);
    const char *mark = strstr(line, "{}");
    snprintf(text, sizeof text, "%.*s%s%s", mark ? (int)(mark - line) : LINE, line,
             mark ? number : "", mark ? mark + 2 : "");
    for (char *word = strtok_r(text, " \n", &rest); word && n < WORDS;
         word = strtok_r(NULL, " \n", &rest))
        words[n++] = word;
    dt_status status = dt_call_parse(n, words, &call);
    if (status == DT_OK)
        status = dt_comm_open(DT_COMM_KIND_SELF, &comm);
    if (status == DT_OK)
        status = call.command->run(comm, &call);
    CHECK((status != DT_OK) == refused, "%s%s", line, dt_error_current()->message);
    dt_error_clear();
    if (comm)
        dt_comm_close(comm);
    dt_call_free(&call);
    fflush(stdout);
}

static void compare(const struct held *before, const struct held *after, const char *line)
{
    CHECK(after->descriptors == before->descriptors, "%lld descriptors were left open by: %s",
          after->descriptors - before->descriptors, line);
    CHECK(after->identifiers == before->identifiers,
          "%lld identifiers of libhdf5 were left open by: %s",
          after->identifiers - before->identifiers, line);
    check_threads((int)before->threads);
    CHECK(after->bytes == before->bytes, "%lld bytes were left by: %s",
          after->bytes - before->bytes, line);
}

int main(int argc, char **argv)
{
    static char lines[COMMANDS][LINE];
    int n = 0, rounds = argc > 1 ? atoi(argv[1]) : 0;
    while (n < COMMANDS && fgets(lines[n], LINE, stdin))
        n++;
    if (!freopen("/dev/null", "w", stdout))
        return 1;
    dt_log_quiet(true);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < n; i++) {
            struct held before = count_held();
            run(lines[i], round);
            struct held after = count_held();
            if (round > 0) // libraries open in the first round what they keep
                compare(&before, &after, lines[i]);
        }
    test_ignores_descriptors = 1; // those of libraries
    return test_end();
}
