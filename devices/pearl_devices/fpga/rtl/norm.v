// The factor of a gradient whose norm is at most `clip` then (0: no limit): min(1, clip / (norm + 1e-6)).
//
// Rows of the gradient come at any time; column c sums its squares in the order of the rows. `finish`
// adds the N sums in the order of the columns; `scale` holds the factor, and `ready` is up, 3L + N + 55
// cycles later. The next row begins new sums.
module norm #(parameter N = 4, L = 4) (
    input clk, rst, valid, input [32*N-1:0] row, input finish, input [31:0] clip,
    output reg [31:0] scale, output ready);
  reg fresh;
  wire [32*N-1:0] sums;
  genvar c;
  generate
    for (c = 0; c < N; c = c + 1) begin : column
      wire [31:0] x = valid ? row[32*c +: 32] : 32'd0;
      fmac #(.L(L)) square(.clk(clk), .a(x), .b(x), .keep(!(valid & fresh)), .q(sums[32*c +: 32]));
    end
  endgenerate
  always @(posedge clk)
    if (rst | finish) fresh <= 1'b1;
    else if (valid) fresh <= 1'b0;
  // The sums are complete L cycles after `finish`; they are then shifted out, one a cycle.
  wire take, taken;
  reg [32*N-1:0] line;
  reg [15:0] left;
  reg first;
  delay #(.W(1), .D(L)) d0(.clk(clk), .in(finish & !rst), .out(take));
  always @(posedge clk) begin
    line <= take ? sums : line >> 32;
    first <= take;
    left <= rst ? 16'd0 : take ? N : left != 16'd0 ? left - 16'd1 : left;
  end
  wire [31:0] total, length, padded, factor;
  fmac #(.L(L)) sum(.clk(clk), .a(left != 16'd0 ? line[31:0] : 32'd0), .b(32'h3f800000), .keep(!first),
      .q(total));
  delay #(.W(1), .D(L)) d1(.clk(clk), .in(left == 16'd1), .out(taken));
  fsqrt s(.clk(clk), .x(total), .q(length));
  fmadd #(.L(L)) f(.clk(clk), .a(length), .b(32'h3f800000), .c(32'h358637bd), .q(padded));
  fdiv q(.clk(clk), .x(clip), .y(padded), .q(factor));
  wire found;
  delay #(.W(1), .D(L + 54)) d2(.clk(clk), .in(taken), .out(found));
  always @(posedge clk)
    if (found) scale <= clip[30:23] == 8'd0 | factor[30:23] >= 8'd127 ? 32'h3f800000 : factor;
  delay #(.W(1), .D(1)) d3(.clk(clk), .in(found), .out(ready));
endmodule
