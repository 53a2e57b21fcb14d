// How kernels/scan_cut.h cuts the 130M model's scan, and the time that it models, with the costs of
// the table in place of its own: for step.py.
// Arguments: forward's blocks a multiprocessor, slots of a token with one and with two channels a
// lane, those of the first run over segments; backward's; then batches.
#include "kernels/scan.h"
#include "kernels/scan_cut.h"

#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 2048, CHANNELS = 1536, CHUNK = DT_SCAN_CHUNK_CUDA, TILE = 16 };
enum { COSTS = 5, PARTS = 1000 };

// In thousandths of a slot.
static scan_costs costs_from(char **args)
{
    int64_t n[COSTS];
    for (int i = 0; i < COSTS; i++)
        n[i] = (int64_t)(atof(args[i]) * (i == 0 ? 1 : PARTS) + 0.5);
    return (scan_costs){n[0], {n[1], n[2]}, {n[3], n[4]}};
}

static void print(int64_t batch, const char *direction, int64_t unit, const scan_costs *chosen_by,
                  const scan_costs *costs)
{
    const int64_t widths[2] = {32, 64};
    scan_device device = SCAN_LARGE_DEVICE;
    const scan_cut cut =
        scan_choose_cut(batch, LENGTH, CHANNELS, widths, CHUNK, unit, chosen_by, &device);
    device.launch *= PARTS;
    const int64_t time = scan_cut_time(&cut, batch, cut.width == widths[1], costs, &device);
    printf("%d %s %f %d channels a block, %d sequences whole, the others in %d segments\n",
           (int)batch, direction, (double)time / PARTS, (int)cut.width, (int)cut.whole,
           (int)cut.segments);
}

int main(int argc, char **argv)
{
    if (argc < 1 + 2 * COSTS)
        return 2;
    const scan_costs forward = costs_from(argv + 1), backward = costs_from(argv + 1 + COSTS);
    for (int i = 1 + 2 * COSTS; i < argc; i++) {
        print(atoi(argv[i]), "forward", TILE, &SCAN_FORWARD_COSTS, &forward);
        print(atoi(argv[i]), "backward", CHUNK, &SCAN_BACKWARD_COSTS, &backward);
    }
    return 0;
}
