// The search for races: each planted race is found in every order of threads, said with both
// places in the source, and its twin that orders the accesses is let pass.
#include "racing.h"
#include "simt_backend.h"

static void check_pair(dt_status (*kernel)(bool), const char *text, const char *what)
{
    dt_status racing = kernel(false);
    const char *message = dt_error_current()->message;
    CHECK(racing == DT_MACHINE && strstr(message, text), "%s: status %d, \"%s\" lacks \"%s\"", what,
          (int)racing, message, text);
    dt_error_clear();
    check_ok(kernel(true), what);
}
#define PAIR(kernel, text) check_pair(kernel, text, #kernel)

static void test_pairs(void)
{
    PAIR(read_behind_write, "a race for tile + ");
    PAIR(write_behind_read, "a race for tile + ");
    PAIR(write_twice_the_same, "a race for flag + 0: thread (");
    PAIR(second_round, "a race for tile + ");
    PAIR(dynamic_shared, "a race for dynamic shared memory + 508");
    PAIR(half_of_a_vector, "a race for tile + 12");
    PAIR(lanes, "a race for tile + ");
    PAIR(lanes_by_shuffle, "a race for tile + ");
    PAIR(lanes_of_a_mask, "a race for tile + 12");
    PAIR(lanes_in_a_chain, "a race for x + 0");
    PAIR(threads_of_a_block, "a race for global memory at");
    PAIR(two_blocks, "a race for global memory at");
    PAIR(block_reads_another, "a race for global memory at");
    PAIR(whole_struct, "a race for global memory at");
    PAIR(copy_read_early, "writes by a copy not waited for at kernels/device.cuh:");
    PAIR(copy_read_by_others, "a race for tile + ");
    PAIR(copy_over_readers, "writes by a copy not waited for");
    PAIR(copy_waited_by_another, "writes by a copy not waited for");
    PAIR(copy_of_written, "reads by a copy not waited for");
    PAIR(older_copy_read, "a race for tiles + ");
}

static void test_right_ones(void)
{
    check_ok(neighbouring_bytes(), "bytes that lie together");
    check_ok(all_read(), "what all read");
    check_ok(own_locals(), "locals");
    check_ok(own_again(), "a thread's own elements");
}

// Both threads and both places.
static void test_report(void)
{
    simt_set_order(SIMT_ASCENDING, 1);
    write_twice_the_same(false);
    const char *message = dt_error_current()->message;
    CHECK(strstr(message, "(same_kernel): a race for flag + 0: thread (0, 0, 0) of block "
                          "(0, 0, 0) writes at tests/simt/racing.cu:") &&
              strstr(message, "; thread (127, 0, 0) of block (0, 0, 0) writes at "
                              "tests/simt/racing.cu:"),
          "\"%s\"", message);
    dt_error_clear();
}

int main(void)
{
    for (int order = 0; order <= SIMT_WARP_AHEAD; order++) {
        simt_set_order((enum simt_order)order, 3);
        test_pairs();
        test_right_ones();
    }
    test_report();
    return test_end();
}
