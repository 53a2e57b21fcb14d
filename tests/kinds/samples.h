// The schema of the test kinds: what a position holds.
#pragma once

enum { SAMPLE_WIDTH = 6, TARGET_WIDTH = 3 };
