#!/usr/bin/env python3
"""choose.py > ../unit/choose_cases.h: computes which classes stay with the options of dt_choose, and with what probability, by plain
float64 arithmetic over sorted probabilities, as transformers' logits processors do. tests/unit/test_draw.c compares with them."""
import math
import random

CASES = [  # n, temperature, top_k, top_p, min_p, penalty
    (5, 1, 0, 1, 0, 1), (5, 0.5, 0, 1, 0, 1), (7, 2, 3, 1, 0, 1), (7, 1, 1, 1, 0, 1), (7, 1, 99, 1, 0, 1),
    (9, 1, 0, 0.6, 0, 1), (9, 0.7, 0, 0.05, 0, 1), (9, 1.3, 0, 0.999, 0, 1), (9, 1, 0, 1, 0.2, 1), (9, 1, 0, 1, 1, 1),
    (11, 1, 0, 1, 0, 1.3), (11, 1, 0, 1, 0, 0.7), (13, 0.9, 8, 0.8, 0.1, 1.2), (13, 1.5, 6, 0.95, 0.02, 1.1),
    (12, 1, 4, 1, 0, 1), (12, 1, 0, 0.5, 0, 1),  # with ties
]


def probabilities(logits, seen, temperature, top_k, top_p, min_p, penalty):
    z = [(x / penalty if x > 0 else x * penalty) if s else x for x, s in zip(logits, seen)]
    z = [x / temperature for x in z]
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if 0 < top_k < len(z):
        order = [i for i in order if z[i] >= z[order[top_k - 1]]]
    weights = [math.exp(z[i] - z[order[0]]) for i in order]
    total, before, stay = sum(weights), 0.0, 0
    for w in weights:
        if stay and (before >= top_p * total and top_p < 1 or w < min_p):
            break
        before, stay = before + w, stay + 1
    out = [0.0] * len(z)
    for i, w in zip(order[:stay], weights):
        out[i] = w / sum(weights[:stay])
    return out


def main():
    random.seed(1)
    print("// Made by tests/golden/choose.py.\nstatic const struct choose_case {\n    struct dt_choice choice;\n    int64_t n;\n"
          "    float logits[16];\n    unsigned char seen[16];\n    double probability[16];\n} choose_cases[] = {")
    for at, (n, *options) in enumerate(CASES):
        logits = [round(random.gauss(0, 2) * 8) / 8 if at >= len(CASES) - 2 else
                  round(random.gauss(0, 2) * 4096) / 4096 for _ in range(n)]
        if at >= len(CASES) - 2:
            logits[1] = logits[5] = logits[7] = 2.5
        seen = [int(random.random() < 0.5) for _ in range(n)]
        p = probabilities(logits, seen, *options)
        t, k, top_p, min_p, penalty = options
        print("    {{%r, %d, %r, %r, %r},\n     %d,\n     {%s},\n     {%s},\n     {%s}}," % (
            t, k, top_p, min_p, penalty, n, ", ".join(map(repr, logits)), ", ".join(map(str, seen)),
            ", ".join("%.17g" % x for x in p)))
    print("};")


if __name__ == "__main__":
    main()
