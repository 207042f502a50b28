// What follows from an anchor's log-sum-exp over the others, `rest`, and its positive's logit.
#pragma once

#include <cstdint>

namespace slipform {

// One direction's anchors; a negative target says that there is none. `target` may be null.
struct Anchors {
  int64_t count;
  const float *rest, *positive;
  const int64_t* target;
};

// loss = softplus(rest - positive): 0 without target, nan where the positive is infinite. Returns
// the sum; `loss` may be null.
double positive_losses(const Anchors&, float* loss);

// pull = factor grad sigmoid(rest - positive) = d loss / d rest, minus_pull = d loss / d positive;
// 0 without target. `grad` has one number for all (stride 0) or one each (stride 1).
void pulls(const Anchors&, const float* grad, int64_t grad_stride, float factor, float* pull,
           float* minus_pull);

}  // namespace slipform
