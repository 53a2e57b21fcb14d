// The schema of the test kinds: the widths of a position's arrays.
#pragma once

enum { SAMPLE_WIDTH = 6, TARGET_WIDTH = 3 };
