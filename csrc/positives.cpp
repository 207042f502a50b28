#include "positives.h"

#include <cmath>
#include <limits>

namespace slipform {

double positive_losses(const Anchors& a, float* loss) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  double sum = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const float difference = a.rest[i] - a.positive[i];
    float value = std::fmax(difference, 0.0f) + std::log1p(std::exp(-std::fabs(difference)));
    if (difference != difference || a.positive[i] == infinite) value = std::nanf("");
    if (a.target != nullptr && a.target[i] < 0) value = 0;
    if (loss != nullptr) loss[i] = value;
    sum += value;
  }
  return sum;
}

void pulls(const Anchors& a, const float* grad, int64_t grad_stride, float factor, float* pull,
           float* minus_pull) {
  for (int64_t i = 0; i < a.count; ++i) {
    pull[i] = factor * grad[i * grad_stride] / (1 + std::exp(a.positive[i] - a.rest[i]));
    if (a.target != nullptr && a.target[i] < 0) pull[i] = 0;
    minus_pull[i] = -pull[i];
  }
}

}  // namespace slipform
