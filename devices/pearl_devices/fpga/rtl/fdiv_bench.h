// The divider as a function that ctypes calls.
using Fdiv = cxxrtl_design::p_fdiv;

// quotient[i] = x[i] / y[i]; one operand a cycle, the first quotient 27 cycles after its operands.
extern "C" void fdiv_run(long n, const uint32_t *x, const uint32_t *y, uint32_t *quotient) {
    Fdiv d;
    for (long i = 0; i < n + 27; i++) {
        if (i < n) d.p_x.set<uint32_t>(x[i]), d.p_y.set<uint32_t>(y[i]);
        d.p_clk.set<bool>(true); d.step();
        d.p_clk.set<bool>(false); d.step();
        if (i >= 26 && i - 26 < n) quotient[i - 26] = d.p_q.get<uint32_t>();
    }
}
