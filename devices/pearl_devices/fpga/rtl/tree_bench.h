// The tree as functions that ctypes calls.
using Tree = cxxrtl_design::p_tree;

static void tick(Tree &t) {
    t.p_clk.set<bool>(true); t.step();
    t.p_clk.set<bool>(false); t.step();
}

extern "C" void *tree_make() {
    auto t = new Tree;
    t->p_rst.set<bool>(true);
    for (int i = 0; i < 4; i++) tick(*t);
    t->p_rst.set<bool>(false);
    tick(*t);
    return t;
}
extern "C" void tree_free(void *tree) { delete static_cast<Tree *>(tree); }
extern "C" uint64_t tree_total(void *tree) { return static_cast<Tree *>(tree)->p_total.curr.get<uint64_t>(); }

// One draw a cycle; returns the cycles from the first prefix to the last leaf.
extern "C" long tree_draw(void *tree, long n, const uint64_t *prefix, uint64_t *leaf) {
    Tree &t = *static_cast<Tree *>(tree);
    long cycles = 0, asked = 0, got = 0;
    while (got < n && cycles < 1000 + 8 * n) {
        t.p_draw__in.set<bool>(asked < n);
        if (asked < n) t.p_prefix.set<uint64_t>(prefix[asked++]);
        tick(t);
        cycles++;
        if (t.p_draw__out.get<bool>()) leaf[got++] = t.p_leaf.get<uint64_t>();
    }
    t.p_draw__in.set<bool>(false);
    return got == n ? cycles : -1;
}

// One set in `apart` cycles; returns the cycles from the first until the root has the last.
extern "C" long tree_set(void *tree, long n, int apart, const uint64_t *at, const uint64_t *value) {
    Tree &t = *static_cast<Tree *>(tree);
    long cycles = 0, asked = 0, got = 0;
    while (got < n && cycles < 1000 + 8 * n) {
        bool now = asked < n && cycles % apart == 0;
        t.p_set__in.set<bool>(now);
        if (now) {
            t.p_at.set<uint64_t>(at[asked]);
            t.p_value.set<uint64_t>(value[asked++]);
        }
        tick(t);
        cycles++;
        if (t.p_set__out.get<bool>()) got++;
    }
    t.p_set__in.set<bool>(false);
    tick(t);
    return got == n ? cycles : -1;
}
