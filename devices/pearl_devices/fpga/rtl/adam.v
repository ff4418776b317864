// Adam (Kingma and Ba 2015) and the target network, one parameter a cycle and lane.

// m = b1 m + r1 g; v = b2 v + (r2 g) g; w -= size m / (sqrt(v) root + eps). Corrections of the bias are
// in `size` and `root`. m_out 2L, v_out 3L and w_out 5L + 54 cycles after the operands.
module adam #(parameter L = 4) (
    input clk, input [31:0] w, m, v, g, b1, r1, b2, r2, eps, size, root,
    output [31:0] w_out, m_out, v_out);
  localparam [31:0] ZERO = 32'd0, MINUS = 32'hbf800000;
  wire [31:0] share, share2, square, g_on, m_on, v_on, w_on, deviation, divisor, step, step_on, change;
  fmadd #(.L(L)) f0(.clk(clk), .a(r1), .b(g), .c(ZERO), .q(share));
  delay #(.W(32), .D(L)) d0(.clk(clk), .in(m), .out(m_on));
  fmadd #(.L(L)) f1(.clk(clk), .a(b1), .b(m_on), .c(share), .q(m_out));
  fmadd #(.L(L)) f2(.clk(clk), .a(r2), .b(g), .c(ZERO), .q(share2));
  delay #(.W(32), .D(L)) d1(.clk(clk), .in(g), .out(g_on));
  fmadd #(.L(L)) f3(.clk(clk), .a(share2), .b(g_on), .c(ZERO), .q(square));
  delay #(.W(32), .D(2 * L)) d2(.clk(clk), .in(v), .out(v_on));
  fmadd #(.L(L)) f4(.clk(clk), .a(b2), .b(v_on), .c(square), .q(v_out));
  fsqrt s(.clk(clk), .x(v_out), .q(deviation));
  fmadd #(.L(L)) f5(.clk(clk), .a(deviation), .b(root), .c(eps), .q(divisor));
  fmadd #(.L(L)) f6(.clk(clk), .a(size), .b(m_out), .c(ZERO), .q(step));
  delay #(.W(32), .D(L + 27)) d3(.clk(clk), .in(step), .out(step_on));
  fdiv q(.clk(clk), .x(step_on), .y(divisor), .q(change));
  delay #(.W(32), .D(4 * L + 54)) d4(.clk(clk), .in(w), .out(w_on));
  fmadd #(.L(L)) f7(.clk(clk), .a(MINUS), .b(change), .c(w_on), .q(w_out));
endmodule

// The target 2L cycles after the operands; mode 0: as before, 1: the parameter, 2: t + tau (w - t).
module follow #(parameter L = 4) (
    input clk, input [31:0] w, t, tau, input [1:0] mode, output [31:0] t_out);
  wire [31:0] gap, t_on, t_old, w_on, moved;
  fmadd #(.L(L)) f0(.clk(clk), .a(32'hbf800000), .b(t), .c(w), .q(gap));
  delay #(.W(32), .D(L)) d0(.clk(clk), .in(t), .out(t_on));
  fmadd #(.L(L)) f1(.clk(clk), .a(tau), .b(gap), .c(t_on), .q(moved));
  delay #(.W(32), .D(L)) d1(.clk(clk), .in(t_on), .out(t_old));
  delay #(.W(32), .D(2 * L)) d2(.clk(clk), .in(w), .out(w_on));
  assign t_out = mode == 2'd0 ? t_old : mode == 2'd1 ? w_on : moved;
endmodule

// A lane: the gradient times `scale` (clipping), Adam, the target.
// m_out 3L, v_out 4L, w_out 6L + 54 and t_out 8L + 54 cycles after the operands.
module lane #(parameter L = 4) (
    input clk, input [31:0] w, t, m, v, g, scale, b1, r1, b2, r2, eps, size, root, tau,
    input [1:0] mode, output [31:0] w_out, t_out, m_out, v_out);
  wire [31:0] clipped, w_on, m_on, v_on, t_on;
  fmadd #(.L(L)) f(.clk(clk), .a(g), .b(scale), .c(32'd0), .q(clipped));
  delay #(.W(96), .D(L)) d(.clk(clk), .in({w, m, v}), .out({w_on, m_on, v_on}));
  adam #(.L(L)) a(.clk(clk), .w(w_on), .m(m_on), .v(v_on), .g(clipped), .b1(b1), .r1(r1), .b2(b2),
      .r2(r2), .eps(eps), .size(size), .root(root), .w_out(w_out), .m_out(m_out), .v_out(v_out));
  delay #(.W(32), .D(6 * L + 54)) d1(.clk(clk), .in(t), .out(t_on));
  follow #(.L(L)) p(.clk(clk), .w(w_out), .t(t_on), .tau(tau), .mode(mode), .t_out(t_out));
endmodule
