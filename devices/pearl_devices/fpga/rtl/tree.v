// The K-ary sum tree over priorities, a memory for each level. Priorities are whole numbers of W bits,
// so sums are exact, in any order.
//
// A draw goes from the root to a leaf, three cycles a level: read a row of K sums, choose the first
// child whose running sum is above the prefix, hand the rest on. A set goes from the leaf to the root,
// three cycles a level: read, write the child, hand on the sum of the row. Draws come one a cycle; sets
// one in three cycles, so that a row is written before it is read again. Draws and sets do not overlap.

// One level: rows of K sums of V bits. A draw carries the row and the prefix, a set the child and its sum.
module level #(parameter K = 4, LK = 2, V = 20, ROWS = 4, RW = 8, VO = 22, PW = 32) (
    input clk, rst,
    input draw_in, input [RW-1:0] draw_row, input [PW-1:0] draw_prefix,
    output reg draw_out, output reg [RW+LK-1:0] draw_child, output reg [PW-1:0] draw_rest,
    input set_in, input [RW+LK-1:0] set_child, input [V-1:0] set_value,
    output reg set_out, output reg [RW-1:0] set_row, output reg [VO-1:0] set_sum);
  wire [K*V-1:0] sums;
  reg set1, set2;
  reg [RW+LK-1:0] child1, child2;
  reg [V-1:0] value1;
  reg [K*V-1:0] row2;
  ram #(.W(K * V), .DEPTH(ROWS), .A(RW)) memory(.clk(clk), .we(set2), .waddr(child2[RW+LK-1:LK]),
      .wdata(row2), .raddr(set_in ? set_child[RW+LK-1:LK] : draw_row), .rdata(sums));

  // Draws: cycle 1 reads, cycle 2 has the running sums, cycle 3 chooses.
  reg draw1, draw2;
  reg [RW-1:0] row_of1, row_of2;
  reg [PW-1:0] prefix1, prefix2;
  reg [PW-1:0] running [0:K];
  reg [PW-1:0] running2 [0:K-1];
  reg [K-1:0] some2;
  integer i;
  always @* begin
    running[0] = {PW{1'b0}};
    for (i = 0; i < K; i = i + 1) running[i+1] = running[i] + sums[V*i +: V];
  end
  reg [LK-1:0] chosen;
  reg found;
  always @* begin
    chosen = {LK{1'b0}};
    found = 1'b0;
    for (i = 0; i < K; i = i + 1)
      if (some2[i] & !found) begin
        chosen = i;
        found = prefix2 < running2[i];
      end
  end
  reg [PW-1:0] passed;
  reg [PW-1:0] start2 [0:K-1];
  always @* passed = start2[chosen];
  always @(posedge clk) begin
    draw1 <= draw_in & !rst;
    draw2 <= draw1 & !rst;
    draw_out <= draw2 & !rst;
    {row_of1, prefix1} <= {draw_row, draw_prefix};
    {row_of2, prefix2} <= {row_of1, prefix1};
    for (i = 0; i < K; i = i + 1) begin
      start2[i] <= running[i];
      running2[i] <= running[i+1];
      some2[i] <= sums[V*i +: V] != {V{1'b0}};
    end
    draw_child <= {row_of2, chosen};
    draw_rest <= prefix2 - passed;
  end

  // Sets: cycle 1 reads, cycle 2 puts the child in, cycle 3 writes and hands the sum on.
  reg [K*V-1:0] changed;
  reg [VO-1:0] sum2;
  always @* begin
    changed = sums;
    for (i = 0; i < K; i = i + 1) if (child1[LK-1:0] == i) changed[V*i +: V] = value1;
    sum2 = {VO{1'b0}};
    for (i = 0; i < K; i = i + 1) sum2 = sum2 + row2[V*i +: V];
  end
  always @(posedge clk) begin
    set1 <= set_in & !rst;
    set2 <= set1 & !rst;
    set_out <= set2 & !rst;
    {child1, value1} <= {set_child, set_value};
    child2 <= child1;
    row2 <= changed;
    set_row <= child2[RW+LK-1:LK];
    set_sum <= sum2;
  end
endmodule

// D levels below the root for CAPACITY leaves. The sums of level l have W + (D - 1 - l) LK bits; it has a
// row for every K^(D - l) leaves.
module tree #(parameter K = 4, LK = 2, D = 3, W = 20, CAPACITY = 64, TOTAL = W + D * LK) (
    input clk, rst,
    input draw_in, input [TOTAL-1:0] prefix, output draw_out, output [D*LK-1:0] leaf,
    output [TOTAL-1:0] rest,
    input set_in, input [D*LK-1:0] at, input [W-1:0] value, output set_out,
    output reg [TOTAL-1:0] total);
  localparam A = D * LK;
  wire [D:0] draws, sets;
  wire [A-1:0] node [0:D], child [0:D];
  wire [TOTAL-1:0] left [0:D], sum [0:D];
  assign draws[0] = draw_in;
  assign node[0] = {A{1'b0}};
  assign left[0] = prefix;
  assign sets[D] = set_in;
  assign child[D] = at;
  assign sum[D] = {{(D*LK){1'b0}}, value};
  genvar l;
  generate
    for (l = 0; l < D; l = l + 1) begin : levels
      localparam V = W + (D - 1 - l) * LK;
      wire [A+LK-1:0] drawn;
      wire [A-1:0] row;
      wire [V+LK-1:0] whole;
      localparam SPAN = (D - l) * LK;
      level #(.K(K), .LK(LK), .V(V), .ROWS((CAPACITY + (1 << SPAN) - 1) >> SPAN), .RW(A), .VO(V + LK), .PW(TOTAL)) one(
          .clk(clk), .rst(rst), .draw_in(draws[l]), .draw_row(node[l]), .draw_prefix(left[l]),
          .draw_out(draws[l+1]), .draw_child(drawn), .draw_rest(left[l+1]), .set_in(sets[l+1]),
          .set_child({{LK{1'b0}}, child[l+1]}), .set_value(sum[l+1][V-1:0]), .set_out(sets[l]),
          .set_row(row), .set_sum(whole));
      assign node[l+1] = drawn[A-1:0];
      assign child[l] = row;
      assign sum[l] = whole;
    end
  endgenerate
  assign draw_out = draws[D];
  assign leaf = node[D];
  assign rest = left[D];
  assign set_out = sets[0];
  always @(posedge clk) if (rst) total <= {TOTAL{1'b0}}; else if (sets[0]) total <= sum[0];
endmodule
