// The boxes of boxes.v as CXXRTL calls them: what a hard DSP block computes, bit for bit.
// Compile with -ffp-contract=off, and L as LATENCY.
#include <cstdint>
#include <cstring>
#include <memory>

namespace cxxrtl_design {

inline float number(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline uint32_t bits(float x) { uint32_t b; std::memcpy(&b, &x, 4); return b; }
// A subnormal number or zero is +0.
inline float flushed(float x) { return (bits(x) & 0x7f800000u) ? x : 0.0f; }
inline float product(uint32_t a, uint32_t b) { return flushed(flushed(number(a)) * flushed(number(b))); }

template <size_t L> struct Fmac : public bb_p_fmac<L> {
    float products[L] = {};
    bool keeps[L] = {};
    float sum = 0;
    bool eval(performer *performer) override {
        if (this->posedge_p_clk()) {
            // The product of this cycle is added L - 1 edges later.
            for (size_t i = L - 1; i > 0; i--) products[i] = products[i - 1], keeps[i] = keeps[i - 1];
            products[0] = product(this->p_a.template get<uint32_t>(), this->p_b.template get<uint32_t>());
            keeps[0] = this->p_keep.template get<uint32_t>();
            sum = keeps[L - 1] ? flushed(sum + products[L - 1]) : products[L - 1];
            this->p_q.next.template set<uint32_t>(bits(sum));
        }
        return bb_p_fmac<L>::eval(performer);
    }
};

template <size_t L> struct Fmadd : public bb_p_fmadd<L> {
    uint32_t results[L] = {};
    bool eval(performer *performer) override {
        if (this->posedge_p_clk()) {
            for (size_t i = L - 1; i > 0; i--) results[i] = results[i - 1];
            results[0] = bits(flushed(product(this->p_a.template get<uint32_t>(),
                                              this->p_b.template get<uint32_t>()) +
                                      flushed(number(this->p_c.template get<uint32_t>()))));
            this->p_q.next.template set<uint32_t>(results[L - 1]);
        }
        return bb_p_fmadd<L>::eval(performer);
    }
};

#ifdef HAS_FMAC
template <> std::unique_ptr<bb_p_fmac<LATENCY>> bb_p_fmac<LATENCY>::create(
    std::string, metadata_map, metadata_map) { return std::make_unique<Fmac<LATENCY>>(); }
#endif
#ifdef HAS_FMADD
template <> std::unique_ptr<bb_p_fmadd<LATENCY>> bb_p_fmadd<LATENCY>::create(
    std::string, metadata_map, metadata_map) { return std::make_unique<Fmadd<LATENCY>>(); }
#endif

}  // namespace cxxrtl_design
