// y = x Wᵀ + b in float32 on packed weights: the product that a step of a model spends most of its time in.
//
// A weight [out, in] is kept as panels of PANEL outputs, [out / PANEL][in][PANEL], so that it is read from memory in
// order. While a piece of a panel is multiplied, the next is fetched into the second-level cache: with few rows of x a
// product waits for memory, with many for the multipliers, in between for both in turn unless they overlap.
// Each output is one sum in the order of `in`: a row does not depend on the rows that run with it.
//
// LANES: floats of a vector register. ROWS: rows whose sums with one panel (two registers each) fit into registers.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

namespace {

using torch::stable::Tensor;

constexpr int64_t kPanel = 2 * LANES, kLine = 64 / sizeof(float);
constexpr int64_t kDepth = 2048;       // inputs of a piece, so that it stays in the second-level cache
constexpr int64_t kBlock = 16 * ROWS;  // rows of x that meet all panels before the next rows do
constexpr int64_t kFew = ROWS + ROWS / 3;  // up to so many, reading a panel costs more than reading x

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef float Unaligned __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

// A piece of P panels that follow each other, and where the next such piece is.
struct Piece {
  const float *weights, *next;  // [depth, kPanel] of the first panel
  int64_t stride;               // from panel to panel
  const float* bias;            // of these columns, or null
  int64_t depth, columns;
  bool first;  // else the sums so far are in y
};

template <int R, int V>
void load(Vector (&sums)[R][V], const Piece& piece, const float* y, int64_t width) {
  for (int r = 0; r < R; ++r)
    for (int64_t c = 0; c < std::min<int64_t>(piece.columns, V * LANES); ++c)
      sums[r][c / LANES][c % LANES] = !piece.first ? y[r * width + c] : piece.bias ? piece.bias[c] : 0.0f;
}

template <int R, int V>
void store(const Vector (&sums)[R][V], const Piece& piece, float* y, int64_t width) {
  for (int r = 0; r < R; ++r)
    if (piece.columns >= V * LANES)
      for (int v = 0; v < V; ++v) *reinterpret_cast<Unaligned*>(y + r * width + v * LANES) = sums[r][v];
    else
      for (int64_t c = 0; c < piece.columns; ++c) y[r * width + c] = sums[r][c / LANES][c % LANES];
}

// R rows of x [R, in] times P panels of a piece, into y [R, width]. With every four inputs, so many Lines of each panel
// of the next piece are fetched, from line `begin` on.
template <int R, int P, int Lines>
void multiply(const float* x, int64_t in, const Piece& piece, float* y, int64_t width, int64_t begin) {
  Vector sums[R][2 * P] = {};
  if (piece.bias || !piece.first) load(sums, piece, y, width);
  const float* next = piece.next + begin * kLine;
  auto step = [&](int64_t k) __attribute__((always_inline)) {
    Vector weights[2 * P];
    for (int v = 0; v < 2 * P; ++v)
      weights[v] = *reinterpret_cast<const Vector*>(piece.weights + v / 2 * piece.stride + k * kPanel + v % 2 * LANES);
    for (int r = 0; r < R; ++r) {
      const Vector value = x[r * in + k] - Vector{};
      for (int v = 0; v < 2 * P; ++v) sums[r][v] += value * weights[v];
    }
  };
  int64_t k = 0;
  for (; k + 4 <= piece.depth; k += 4, next += Lines * kLine)
    for (int i = 0; i < 4; ++i) {
      for (int line = i * Lines / 4; line < (i + 1) * Lines / 4; ++line)
        for (int p = 0; p < P; ++p) __builtin_prefetch(next + p * piece.stride + line * kLine, 0, 2);
      step(k + i);
    }
  for (; k < piece.depth; ++k) step(k);
  store(sums, piece, y, width);
}

using Multiply = void (*)(const float*, int64_t, const Piece&, float*, int64_t, int64_t);

template <int P, int Lines, size_t... R>
constexpr std::array<Multiply, sizeof...(R)> by_rows(std::index_sequence<R...>) {
  return {multiply<R + 1, P, Lines>...};
}

// The rows of x times a piece, in groups as even as can be, each of which fetches its share of the next piece.
template <int P>
void multiply_rows(const float* x, int64_t rows, int64_t in, const Piece& piece, float* y, int64_t out) {
  constexpr int64_t most = ROWS / P, lines = 4 * kPanel / kLine;
  constexpr auto up_to = std::make_index_sequence<most>();
  static constexpr std::array kinds = {by_rows<P, lines>(up_to), by_rows<P, lines / 2>(up_to),
                                       by_rows<P, lines / 4>(up_to), by_rows<P, lines / 8>(up_to)};
  const int64_t groups = (rows + most - 1) / most, share = piece.depth * kPanel / kLine / groups;
  const auto& kind = kinds[groups >= 8 ? 3 : groups >= 4 ? 2 : groups - 1 ? 1 : 0];
  for (int64_t group = 0, row = 0; group < groups; ++group) {
    const int64_t count = (rows - row) / (groups - group);
    kind[count - 1](x + row * in, in, piece, y + row * out, out, group * share);
    row += count;
  }
}

// Rows of x [rows, in] times the panels from `begin` to `end`, P at a time.
template <int P>
void multiply_panels(const float* x, int64_t rows, int64_t in, const float* packed, const float* bias, float* y,
                     int64_t out, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end && panel * kPanel < out; panel += P)
    for (int64_t k = 0; k < in; k += kDepth) {
      const int64_t column = panel * kPanel, after = k + kDepth;
      const float* weights = packed + (panel * in + k) * kPanel;
      const float* next = after < in ? weights + kDepth * kPanel : packed + (panel + P) * in * kPanel;
      const Piece piece{weights, next, in * kPanel, bias ? bias + column : nullptr,
                        std::min(kDepth, in - k), out - column, k == 0};
      multiply_rows<P>(x + k, rows, in, piece, y + column, out);
    }
}

// x [..., in], packed [panels, in, kPanel] with an even number of panels, bias [out] or none -> [..., out], all float32.
Tensor packed_linear(Tensor x, Tensor packed, int64_t out, std::optional<Tensor> bias) {
  x = torch::stable::contiguous(x);
  const int64_t in = x.size(-1), rows = in ? x.numel() / in : 0, pairs = packed.size(0) / 2;
  for (const Tensor& given : {x, packed, bias.value_or(x)})
    STD_TORCH_CHECK(given.scalar_type() == torch::headeronly::ScalarType::Float, "x, weight and bias are float32");
  STD_TORCH_CHECK(packed.is_contiguous() && (!bias || bias->is_contiguous()), "weight and bias lie in one piece");
  STD_TORCH_CHECK(packed.dim() == 3 && packed.size(1) == in && packed.size(2) == kPanel, "weight of another packing");
  STD_TORCH_CHECK(pairs == (out + 2 * kPanel - 1) / (2 * kPanel), "as many outputs as the weight has");
  STD_TORCH_CHECK(!bias || bias->numel() == out, "one bias for each output");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = out;
  Tensor y = torch::stable::new_empty(x, shape);
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  const auto* weights = static_cast<const float*>(packed.const_data_ptr());
  const auto* added = bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr;
  auto* to = static_cast<float*>(y.mutable_data_ptr());
  auto* multiplied = rows <= kFew ? multiply_panels<1> : multiply_panels<2>;
  for (int64_t row = 0; row < rows; row += kBlock)
    torch::stable::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
      multiplied(from + row * in, std::min(kBlock, rows - row), in, weights, added, to + row * out, out, 2 * begin,
                 2 * end);
    });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(neuron_autoport, library) {
  library.def("packed_linear(Tensor x, Tensor packed, int out, Tensor? bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(neuron_autoport, CPU, library) {
  library.impl("packed_linear", TORCH_BOX(&packed_linear));
}
