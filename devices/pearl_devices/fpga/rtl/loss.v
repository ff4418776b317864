// The loss of DQN, double or plain, and of DDPG's critic (outputs = 1) and actor, one sample a cycle.
//
// y = discount qt[best] + reward, error = q[action] - y, best the first largest of qn (double) or qt.
// `td` = |error| is out LN + 1 + 2L cycles after the operands. `slope` L later is weight inv_rows times
// the error, which is cut at `delta` if that is above 0 (Huber); `row` has it in word `action`. For an
// actor (`acts`) the slope is actor_slope, and `td` is q[action].
module loss #(parameter N = 4, LN = 2, L = 4) (
    input clk, valid, double, acts, input [15:0] outputs,
    input [32*N-1:0] q, qt, qn, input [31:0] reward, discount, weight, action,
    input [31:0] inv_rows, delta, actor_slope,
    output td_valid, output [31:0] td, output row_valid, output [32*N-1:0] row);
  // The best output by a tree of comparators: {order of the number, index}.
  wire [31+LN:0] node [0:2*N-2];
  genvar i, s;
  generate
    for (i = 0; i < N; i = i + 1) begin : leaf
      localparam [LN-1:0] here = i;
      wire [31:0] x = double ? qn[32*i +: 32] : qt[32*i +: 32];
      assign node[N - 1 + i] = {i < outputs ? (x[31] ? ~x : {1'b1, x[30:0]}) : 32'd0, here};
    end
    for (i = 0; i < N - 1; i = i + 1) begin : inner
      wire [31+LN:0] a = node[2*i + 1], b = node[2*i + 2];
      reg [31+LN:0] best;
      always @(posedge clk) best <= a[31+LN:LN] >= b[31+LN:LN] ? a : b;
      assign node[i] = best;
    end
  endgenerate
  wire [32*N-1:0] qt_on, q_on;
  wire [31:0] action_on, reward_on, discount_on, weight_on;
  delay #(.W(64*N), .D(LN)) d0(.clk(clk), .in({qt, q}), .out({qt_on, q_on}));
  delay #(.W(128), .D(LN)) d1(.clk(clk), .in({action, reward, discount, weight}),
      .out({action_on, reward_on, discount_on, weight_on}));
  reg [31:0] ahead, value, r, gamma, part;
  reg [LN-1:0] word;
  always @(posedge clk) begin
    ahead <= qt_on >> (32 * node[0][LN-1:0]);
    value <= q_on >> (32 * action_on[LN-1:0]);
    {r, gamma, part, word} <= {reward_on, discount_on, weight_on, action_on[LN-1:0]};
  end
  wire [31:0] y, value_on, error, share, share_on, cut, slope;
  fmadd #(.L(L)) f0(.clk(clk), .a(gamma), .b(ahead), .c(r), .q(y));
  delay #(.W(32), .D(L)) d2(.clk(clk), .in(value), .out(value_on));
  fmadd #(.L(L)) f1(.clk(clk), .a(32'hbf800000), .b(y), .c(value_on), .q(error));
  fmadd #(.L(L)) f2(.clk(clk), .a(part), .b(inv_rows), .c(32'd0), .q(share));
  delay #(.W(32), .D(L)) d3(.clk(clk), .in(share), .out(share_on));
  wire [31:0] value_late;
  delay #(.W(32), .D(L)) d7(.clk(clk), .in(value_on), .out(value_late));
  assign td = acts ? value_late : {1'b0, error[30:0]};
  assign cut = delta[30:23] != 8'd0 & error[30:0] > delta[30:0] ? {error[31], delta[30:0]} : error;
  fmadd #(.L(L)) f3(.clk(clk), .a(share_on), .b(cut), .c(32'd0), .q(slope));
  delay #(.W(1), .D(LN + 1 + 2 * L)) d4(.clk(clk), .in(valid), .out(td_valid));
  delay #(.W(1), .D(LN + 1 + 3 * L)) d5(.clk(clk), .in(valid), .out(row_valid));
  wire [LN-1:0] at;
  delay #(.W(LN), .D(3 * L)) d6(.clk(clk), .in(word), .out(at));
  generate
    for (i = 0; i < N; i = i + 1) begin : put
      assign row[32*i +: 32] = acts ? (i == 0 ? actor_slope : 32'd0) : at == i ? slope : 32'd0;
    end
  endgenerate
endmodule
