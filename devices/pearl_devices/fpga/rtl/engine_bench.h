// The engine as functions that ctypes calls. A tick is a rising edge, a step, a falling edge, a step.
using Engine = cxxrtl_design::p_engine;

static void tick(Engine &e) {
    e.p_clk.set<bool>(true); e.step();
    e.p_clk.set<bool>(false); e.step();
}

extern "C" void *engine_make() {
    auto e = new Engine;
    e->p_rst.set<bool>(true);
    for (int i = 0; i < 4; i++) tick(*e);
    e->p_rst.set<bool>(false);
    tick(*e);
    return e;
}
extern "C" void engine_free(void *engine) { delete static_cast<Engine *>(engine); }

extern "C" void engine_program(void *engine, int at, const uint32_t *words) {
    Engine &e = *static_cast<Engine *>(engine);
    e.p_program__we.set<bool>(true);
    e.p_program__at.set<uint32_t>(at);
    std::memcpy(e.p_program__data.data, words, 32);
    tick(e);
    e.p_program__we.set<bool>(false);
}
extern "C" void engine_set(void *engine, int at, uint32_t word) {
    Engine &e = *static_cast<Engine *>(engine);
    e.p_set__we.set<bool>(true);
    e.p_set__at.set<uint32_t>(at);
    e.p_set__data.set<uint32_t>(word);
    tick(e);
    e.p_set__we.set<bool>(false);
}

// Runs the program from `at`. stream: `beats` rows of `width` words; beat i is withheld for stalls[i % 16]
// cycles once asked for. out, td: what comes out, with room for `most` rows and samples.
// Returns the cycles from `start` until the engine is idle, or -1 after `limit` cycles.
extern "C" long engine_run(void *engine, int at, const uint32_t *stream, long beats, int width,
                           const int *stalls, uint32_t *out, long *outs, uint32_t *td, long *tds, long most,
                           long limit) {
    Engine &e = *static_cast<Engine *>(engine);
    e.p_start__at.set<uint32_t>(at);
    e.p_start.set<bool>(true);
    long cycles = 0, beat = 0;
    int held = stalls[0];
    *outs = *tds = 0;
    do {
        tick(e);
        cycles++;
        e.p_start.set<bool>(false);
        bool ready = e.p_in__ready.get<bool>(), valid = false;
        if (ready && beat < beats) {
            if (held > 0) held--;
            else valid = true;
        }
        e.p_in__valid.set<bool>(valid);
        if (valid) {
            std::memcpy(e.p_in__data.data, stream + beat * width, 4 * width);
            beat++;
            held = stalls[beat % 16];
        }
        e.step();
        if (e.p_out__valid.get<bool>() && *outs < most) {
            std::memcpy(out + *outs * WORDS, e.p_out__data.data, 4 * WORDS);
            ++*outs;
        }
        if (e.p_td__valid.get<bool>() && *tds < most) td[(*tds)++] = e.p_td.get<uint32_t>();
        if (cycles > limit) return -1;
    } while (!e.p_idle.get<bool>());
    return cycles;
}
