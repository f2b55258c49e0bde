// y = x Wᵀ + b in float32 on packed weights: the product that a step of a model spends most of its time in.
//
// A weight [out, in] is kept as panels of PANEL outputs, [out / PANEL][in][PANEL], so that it is read from memory in
// order. While a piece of a panel is multiplied, the next is fetched into the second-level cache: with few rows of x a
// product waits for memory, with many for the multipliers, in between for both in turn unless they overlap.
// Each output is one sum in the order of `in`: a row does not depend on the rows that run with it.
//
// Two weights of one size that read the same x may be packed as halves, LANES outputs of the first and LANES of the
// second to a panel. Then act(x W1ᵀ) * (x W2ᵀ), the inside of a gated MLP, is made while both sums are in registers.
//
// LANES: floats of a vector register. ROWS: rows whose sums with one panel (two registers each) fit into registers.
// DEPTH: inputs of a piece of a panel, so that it stays in the second-level cache.

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
constexpr int64_t kBlock = 16 * ROWS;  // rows of x that meet all panels before the next rows do
constexpr int64_t kFew = ROWS + ROWS / 3;  // up to so many, reading a panel costs more than reading x

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef float Unaligned __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));

enum Act : int64_t { kNone, kSiLU, kGELUTanh };

// A piece of P panels that follow each other, and where the next such piece is.
struct Piece {
  const float *weights, *next;  // [depth, kPanel] of the first panel
  int64_t stride;               // from panel to panel
  const float* bias;            // of these columns, or null
  int64_t depth, columns;       // columns: from the first of the piece to the last of y, or of a half
  int64_t half;                 // columns of a half, or 0: not packed as halves
  Act act;                      // of the first half, which is then multiplied with the second
  bool first;                   // else the sums so far are in y

  // Where the columns of register v are, and how many of them there are.
  int64_t place(int v) const { return half ? v / 2 * LANES + v % 2 * half : v * LANES; }
  int64_t count(int v) const { return std::clamp<int64_t>(columns - (half ? v / 2 : v) * LANES, 0, LANES); }
};

template <int R, int V>
void load(Vector (&sums)[R][V], const Piece& piece, const float* y, int64_t width) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      for (int64_t i = piece.place(v), c = 0; c < piece.count(v); ++c)
        sums[r][v][c] = !piece.first ? y[r * width + i + c] : piece.bias ? piece.bias[i + c] : 0.0f;
}

inline void put(const Vector& sums, int64_t count, float* y) {
  if (count == LANES)
    *reinterpret_cast<Unaligned*>(y) = sums;
  else
    for (int64_t c = 0; c < count; ++c) y[c] = sums[c];
}

// e^x for x between -87 and 88 and about that outside, to 2 units in the last place; what is not a number stays so.
// e^x = 2^n e^r with |r| <= ln(2)/2, and e^r by its series.
inline Vector exponential(Vector x) {
  const Vector low = Vector{} - 87.0f, high = Vector{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vector shift = Vector{} + 0x1.8p23f;  // a sum with it is rounded to a whole number, in its last bits
  const Vector shifted = x * 0x1.715476p0f + shift, n = shifted - shift;
  const Vector r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln(2) in two parts, n times the first is exact
  Vector sum = r * (1.0f / 5040) + 1.0f / 720;
  for (float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f}) sum = sum * r + term;
  const Integers power = ((Integers)shifted - (Integers)shift) << 23;
  return (Vector)((Integers)sum + power);
}

// x sigmoid(x), or GELU with tanh, x (1 + tanh(u)) / 2 = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vector activated(const Vector& x, Act act) {
  const Vector u = act == kSiLU ? x : 1.5957691216057308f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exponential(-u));
}

// act(first half) * second half of `rows` rows, each with `registers` sums. Not inlined: each of the kinds below calls it.
__attribute__((noinline)) void store_activated(const Vector* sums, int rows, int registers, const Piece& piece,
                                               float* y, int64_t width) {
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < registers; v += 2, sums += 2)
      put(activated(sums[0], piece.act) * sums[1], piece.count(v), y + r * width + piece.place(v));
}

template <int R, int V>
void store(const Vector (&sums)[R][V], const Piece& piece, float* y, int64_t width) {
  if (piece.act) return store_activated(&sums[0][0], R, V, piece, y, width);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) put(sums[r][v], piece.count(v), y + r * width + piece.place(v));
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

// What one product is of. columns: of y, or of a half. width: of a row of y.
struct Product {
  const float *packed, *bias;
  int64_t in, columns, half, width;
  Act act;
};

// Rows of x [rows, in] times the panels from `begin` to `end`, P at a time.
template <int P>
void multiply_panels(const float* x, int64_t rows, const Product& of, float* y, int64_t begin, int64_t end) {
  const int64_t step = of.half ? LANES : kPanel;
  for (int64_t panel = begin; panel < end && panel * step < of.columns; panel += P)
    for (int64_t k = 0; k < of.in; k += DEPTH) {
      const int64_t column = panel * step, after = k + DEPTH;
      const float* weights = of.packed + (panel * of.in + k) * kPanel;
      const float* next = after < of.in ? weights + DEPTH * kPanel : of.packed + (panel + P) * of.in * kPanel;
      const Piece piece{weights, next, of.in * kPanel, of.bias ? of.bias + column : nullptr,
                        std::min<int64_t>(DEPTH, of.in - k), of.columns - column, of.half, of.act, k == 0};
      multiply_rows<P>(x + k, rows, of.in, piece, y + column, of.width);
    }
}

Tensor run(Tensor x, const Tensor& packed, int64_t out, const std::optional<Tensor>& bias, bool halves, Act act) {
  x = torch::stable::contiguous(x);
  const int64_t in = x.size(-1), rows = in ? x.numel() / in : 0, pairs = packed.size(0) / 2;
  const int64_t columns = halves ? out / 2 : out, pair = halves ? 2 * LANES : 2 * kPanel;
  for (const Tensor& given : {x, packed, bias.value_or(x)})
    STD_TORCH_CHECK(given.scalar_type() == torch::headeronly::ScalarType::Float, "x, weight and bias are float32");
  STD_TORCH_CHECK(packed.is_contiguous() && (!bias || bias->is_contiguous()), "weight and bias lie in one piece");
  STD_TORCH_CHECK(packed.dim() == 3 && packed.size(1) == in && packed.size(2) == kPanel, "weight of another packing");
  STD_TORCH_CHECK(pairs == (columns + pair - 1) / pair, "as many outputs as the weight has");
  STD_TORCH_CHECK(!bias || bias->numel() == out, "one bias for each output");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = act ? columns : out;
  Tensor y = torch::stable::new_empty(x, shape);
  const Product product{static_cast<const float*>(packed.const_data_ptr()),
                        bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr,
                        in, columns, halves ? columns : 0, shape.back(), act};
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  auto* to = static_cast<float*>(y.mutable_data_ptr());
  auto* multiplied = rows <= kFew ? multiply_panels<1> : multiply_panels<2>;
  for (int64_t row = 0; row < rows; row += kBlock)
    torch::stable::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
      multiplied(from + row * in, std::min(kBlock, rows - row), product, to + row * product.width, 2 * begin, 2 * end);
    });
  return y;
}

// x [..., in], packed [panels, in, kPanel] with an even number of panels, bias [out] or none -> [..., out], all float32.
Tensor packed_linear(Tensor x, Tensor packed, int64_t out, std::optional<Tensor> bias) {
  return run(x, packed, out, bias, false, kNone);
}

// The same for a weight packed as halves; with an act (see Act) -> act(first half) * second half, [..., out / 2].
Tensor packed_halves(Tensor x, Tensor packed, int64_t out, std::optional<Tensor> bias, int64_t act) {
  STD_TORCH_CHECK(out % 2 == 0, "two halves");
  STD_TORCH_CHECK(act >= kNone && act <= kGELUTanh, "an activation of this kernel");
  STD_TORCH_CHECK(!act || x.size(-1) <= DEPTH, "an activation of sums that are made in one piece");
  return run(x, packed, out, bias, true, static_cast<Act>(act));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(neuron_autoport, library) {
  library.def("packed_linear(Tensor x, Tensor packed, int out, Tensor? bias) -> Tensor");
  library.def("packed_halves(Tensor x, Tensor packed, int out, Tensor? bias, int act) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(neuron_autoport, CPU, library) {
  library.impl("packed_linear", TORCH_BOX(&packed_linear));
  library.impl("packed_halves", TORCH_BOX(&packed_halves));
}
