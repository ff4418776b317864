// Float32 arithmetic of a hard DSP block, as black boxes: a synthesis tool maps each to one block,
// CXXRTL to a class of boxes.h, and other simulators to float32.v.
// Rounding is to the nearest even number. A subnormal or zero operand or result is +0.

// One block that accumulates: q L cycles later = round(round(a * b) + (keep ? q : 0)), where q is the
// sum of the operands one cycle before. keep = 0 begins a new sum.
(* blackbox, cxxrtl_blackbox, cxxrtl_template = "L" *)
module fmac #(parameter L = 4) (
    (* cxxrtl_edge = "p" *) input clk,
    input [31:0] a, b, input keep,
    (* cxxrtl_sync *) output [31:0] q);
endmodule

// One block that multiplies and adds: q L cycles later = round(round(a * b) + c).
(* blackbox, cxxrtl_blackbox, cxxrtl_template = "L" *)
module fmadd #(parameter L = 4) (
    (* cxxrtl_edge = "p" *) input clk,
    input [31:0] a, b, c,
    (* cxxrtl_sync *) output [31:0] q);
endmodule
