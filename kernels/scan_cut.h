// How the CUDA scan is cut into thread blocks: one or two channels per lane, and which sequences
// are cut into segments that run side by side. The cut is a pure function of the shapes for one
// fixed device, so that bits do not depend on the actual device.
//
// A block walks its tokens one after another, so only more blocks fill a device. Two channels per
// lane cost less per channel than one, but give half as many blocks. Segments give any number of
// blocks, but their start states need a first run of the recurrence, at half to three quarters of
// the cost of the second. So whole sequences fill the SMs as often as they fit evenly, and the rest
// of the batch is cut: the first `whole` sequences are one run each, the others `segments` runs
// each. The cut with the least modelled time is used.
//
// The model: `resident` blocks share an SM, each with a warp on every scheduler. A token costs a
// block `token` cycles of each scheduler. One warp alone issues at most every other cycle, because
// its instructions wait for each other; two or more warps share all cycles.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SCAN_SEGMENTS_MOST = 32 };

typedef struct scan_device {
    int64_t sms;
    int64_t launch;       // issue slots between one launch's last block and the next launch's first
    int64_t start_tokens; // cost of a run's start: parameters, and no tile fetched ahead
    int64_t least_steps;  // minimum steps of a segment
} scan_device;

// Large data-centre devices: 132 SMs of an H100 or H200, 108 of an A100; 2.3 µs at 1.755 GHz; a
// tile's time.
static const scan_device SCAN_LARGE_DEVICE = {132, 4000, 16, 32};
// The simulator's device: it makes the small shapes of tests take every kind of cut.
static const scan_device SCAN_SMALL_DEVICE = {3, 0, 0, 16};

// What a kernel and its first run over segments cost; [0]: one channel per lane, [1]: two.
typedef struct scan_costs {
    int64_t resident;                 // blocks per SM, limited by registers
    int64_t token[2], first_token[2]; // cycles of a scheduler
} scan_costs;

// N = 16 in bf16, counted from the machine code for sm_90: four times the cycles that a warp takes
// of a multiprocessor's slowest pipe, which are issue slots (one channel per lane forward), special
// functions (two, and first runs) or the data path of shared memory (backward). Other sizes are
// nearly proportional. The resident blocks are those of the kernels' launch bounds, for which the
// compiler allots registers.
enum { SCAN_FORWARD_RESIDENT = 4, SCAN_BACKWARD_RESIDENT = 3 };
static const scan_costs SCAN_FORWARD_COSTS = {SCAN_FORWARD_RESIDENT, {49, 76}, {34, 68}};
static const scan_costs SCAN_BACKWARD_COSTS = {SCAN_BACKWARD_RESIDENT, {161, 206}, {47, 80}};

typedef struct scan_cut {
    int64_t length, channels;
    int64_t width, channel_blocks; // channels of a block, blocks side by side
    int64_t chunks;                // per sequence, with saved states before each
    int64_t whole;                 // sequences at the start of the batch that are not cut
    int64_t segments, steps;       // per other sequence; tokens per segment
} scan_cut;

static inline int64_t scan_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// Runs are numbered: whole sequences first, then segments, sequence after sequence.
static inline int64_t scan_runs(const scan_cut *cut, int64_t batch)
{
    return cut->whole + (batch - cut->whole) * cut->segments;
}

// Time in which an SM does one token of each of `blocks` blocks; unit: a token of one block at full
// rate.
static inline int64_t scan_shared_time(int64_t blocks, int64_t resident)
{
    int64_t last = blocks % resident;
    return blocks - last + (last == 1 ? 2 : last);
}

// The time of a launch with `runs` equal runs and, after them, `more` shorter ones.
static inline int64_t scan_launch_time(const scan_cut *cut, int64_t runs, int64_t tokens,
                                       int64_t more, int64_t more_tokens, int64_t resident,
                                       const scan_device *device)
{
    int64_t blocks = scan_div_up(runs * cut->channel_blocks, device->sms);
    int64_t time = scan_shared_time(blocks, resident) * tokens, average;
    if (more == 0)
        return time;
    // the shorter runs fill gaps; the last one sticks out by its length
    average = (runs * tokens + more * more_tokens) * cut->channel_blocks / device->sms;
    return average + more_tokens > time ? average + more_tokens : time;
}

// Modelled time of the op's launches, in issue slots. two: two channels per lane.
static inline int64_t scan_cut_time(const scan_cut *cut, int64_t batch, bool two,
                                    const scan_costs *costs, const scan_device *device)
{
    int64_t tokens = cut->length + device->start_tokens, steps = cut->steps + device->start_tokens;
    int64_t cut_ones = batch - cut->whole, firsts = cut_ones * (cut->segments - 1);
    if (cut_ones == 0)
        return costs->token[two] *
               scan_launch_time(cut, batch, tokens, 0, 0, costs->resident, device);
    // a segment reads the end states of earlier segments: a token's time each
    steps += cut->segments;
    return device->launch +
           costs->first_token[two] *
               scan_launch_time(cut, firsts, steps, 0, 0, costs->resident, device) +
           costs->token[two] *
               (cut->whole == 0
                    ? scan_launch_time(cut, cut_ones * cut->segments, steps, 0, 0, costs->resident,
                                       device)
                    : scan_launch_time(cut, cut->whole, tokens, cut_ones * cut->segments, steps,
                                       costs->resident, device));
}

// Whole sequences in blocks of `width` channels.
static inline scan_cut scan_uncut(int64_t batch, int64_t length, int64_t channels, int64_t width,
                                  int64_t chunk)
{
    scan_cut cut;
    cut.length = cut.steps = length, cut.segments = 1, cut.whole = batch;
    cut.channels = channels, cut.width = width;
    cut.channel_blocks = scan_div_up(channels, width);
    cut.chunks = scan_div_up(length, chunk);
    return cut;
}

// `cut` with `whole` sequences whole and the others cut into at most `segments` segments, multiples
// of `unit` tokens.
static inline scan_cut scan_cut_into(scan_cut cut, int64_t whole, int64_t segments, int64_t unit)
{
    cut.whole = whole;
    cut.steps = scan_div_up(scan_div_up(cut.length, segments), unit) * unit;
    cut.segments = scan_div_up(cut.length, cut.steps);
    return cut;
}

// The best cut of `uncut`, which has one or two channels per lane.
static inline scan_cut scan_best_segments(scan_cut uncut, int64_t batch, bool two, int64_t unit,
                                          const scan_costs *costs, const scan_device *device)
{
    scan_cut best = uncut;
    int64_t best_time = scan_cut_time(&best, batch, two, costs, device);
    int64_t most = scan_div_up(batch * uncut.channel_blocks, device->sms); // blocks per SM
    for (int64_t segments = 2; segments <= SCAN_SEGMENTS_MOST; segments += segments < 16 ? 1 : 4) {
        if (uncut.length < segments * device->least_steps)
            break;
        // whole: none, or as many sequences as fill the SMs evenly
        for (int64_t each = 0; each <= most; each++) {
            if (each > 0 && each + costs->resident < most)
                continue;
            int64_t whole = each * device->sms / uncut.channel_blocks;
            scan_cut cut = scan_cut_into(uncut, whole < batch ? whole : 0, segments, unit);
            int64_t time = scan_cut_time(&cut, batch, two, costs, device);
            if (cut.segments > 1 && time < best_time) {
                best = cut;
                best_time = time;
            }
        }
    }
    return best;
}

// widths: channels per block with one and with two channels per lane (0: no such form). Segments
// are multiples of `unit` tokens.
static inline scan_cut scan_choose_cut(int64_t batch, int64_t length, int64_t channels,
                                       const int64_t widths[2], int64_t chunk, int64_t unit,
                                       const scan_costs *costs, const scan_device *device)
{
    scan_cut one = scan_uncut(batch, length, channels, widths[0], chunk);
    one = scan_best_segments(one, batch, false, unit, costs, device);
    if (widths[1] == 0)
        return one;
    scan_cut two = scan_uncut(batch, length, channels, widths[1], chunk);
    two = scan_best_segments(two, batch, true, unit, costs, device);
    return scan_cut_time(&two, batch, true, costs, device) <=
                   scan_cut_time(&one, batch, false, costs, device)
               ? two
               : one;
}
