// A running mean and variance of the losses, and a loss's distance from them.
#include "train/spikes.h"

#include <math.h>

enum { LEAST = 20, WINDOW = 100 };

double dt_loss_z(const struct dt_loss_statistics *s, double loss)
{
    if (s->count < LEAST || !isfinite(loss))
        return NAN;
    double deviation = sqrt(s->variance), distance = loss - s->mean;
    return deviation > 0 ? distance / deviation : distance == 0 ? 0 : copysign(INFINITY, distance);
}

void dt_loss_count(struct dt_loss_statistics *s, double loss, double limit)
{
    if (!isfinite(loss))
        return;
    double distance = loss - s->mean, most = limit * sqrt(s->variance);
    if (s->count >= LEAST && fabs(distance) > most)
        distance = copysign(most, distance);
    s->count++;
    double weight = 1.0 / fmin((double)s->count, WINDOW);
    s->mean += weight * distance;
    s->variance = (1 - weight) * (s->variance + weight * distance * distance);
}
