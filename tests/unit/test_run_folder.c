// Tests who holds the lock of a run folder, whatever is written in the lock's file, and what
// state.json says in the end.
#include "job/run_folder.h"

#include "scratch.h"

#include <sys/file.h>

// Where no other file can be written, the last words overwrite longer ones in place.
static void test_in_place(const struct dt_run_folder *folder)
{
    char *text;
    dt_run_folder_best(4, 0.25);
    CHECK_OK(dt_run_folder_state(folder, "running", 7, "a reason that is longer than the next"));
    CHECK_OK(dt_make_dirs(in_scratch("state.json.tmp/in the way")));
    dt_run_folder_watch(scratch);
    dt_run_folder_step(9);
    dt_run_folder_note_end("short");
    text = get_text(in_scratch("state.json"));
    CHECK_STR(text, "{\"state\":\"failed\",\"step\":9,\"reason\":\"short\",\"best_step\":4,"
                    "\"best_loss\":0.25}\n");
    free(text);
}

int main(void)
{
    struct {
        struct dt_run_folder folder;
        char guard[8];
    } run = {.guard = "guarded"};
    char text[400], name[160], message[512], mine[64], *after;
    const size_t shown = sizeof run.folder.previous - 1;
    make_scratch();
    memset(text, 'x', sizeof text);
    snprintf(name, sizeof name, "%.*s", (int)shown, text);
    // As another version or damage would leave it.
    put_bytes(in_scratch(".lock"), text, sizeof text);
    int fd = open(in_scratch(".lock"), O_RDONLY);
    CHECK_INT(flock(fd, LOCK_EX), 0);
    snprintf(message, sizeof message, "%s is in use by %s", scratch, name);
    CHECK_INT(dt_run_folder_open(scratch, 0, &run.folder), DT_USER);
    CHECK_STR(dt_error_current()->message, message); // the name is cut
    close(fd);
    CHECK_OK(dt_run_folder_open(scratch, 0, &run.folder));
    CHECK_STR(run.folder.previous, name);
    CHECK_STR(run.guard, "guarded");
    after = get_text(in_scratch(".lock")); // the long text is gone
    snprintf(mine, sizeof mine, "process %d on host ", (int)getpid());
    CHECK(strncmp(after, mine, strlen(mine)) == 0 && strchr(after, '\n') == strchr(after, 0) - 1,
          "the lock holds %s", after);
    free(after);
    test_in_place(&run.folder);
    dt_run_folder_close(&run.folder);
    dt_error_clear();
    remove_scratch();
    return test_end();
}
