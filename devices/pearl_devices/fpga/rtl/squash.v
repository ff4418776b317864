// DDPG's actions: middle + half tanh(z), and the way back, one component a cycle.
//
// tanh is a line in each of 512 intervals of 1/64 (tanh.hex: start, slope, value), 1 from 511/64 on.
// t_out 2L + 1 and action 3L + 1 cycles after z; back = d half (1 - t t) 3L cycles after d and t.
module squash #(parameter L = 4) (
    input clk, input [31:0] z, half, middle, output [31:0] t_out, action,
    input [31:0] d, t, half_back, output [31:0] back);
  reg [95:0] rom [0:511];
  initial $readmemh("tanh.hex", rom);
  wire [23:0] digits = {1'b1, z[22:0]};
  wire [8:0] interval = z[30:23] < 8'd121 ? 9'd0 : z[30:23] > 8'd129 ? 9'd511
      : digits >> (8'd144 - z[30:23]);
  reg [95:0] line;
  reg [31:0] size;
  always @(posedge clk) begin
    line <= rom[interval];
    size <= {1'b0, z[30:0]};
  end
  wire [31:0] past, slope, value, bent, half_on, middle_on;
  wire sign;
  fmadd #(.L(L)) f0(.clk(clk), .a(32'hbf800000), .b(line[95:64]), .c(size), .q(past));
  delay #(.W(64), .D(L)) d0(.clk(clk), .in(line[63:0]), .out({slope, value}));
  fmadd #(.L(L)) f1(.clk(clk), .a(slope), .b(past), .c(value), .q(bent));
  delay #(.W(1), .D(2 * L + 1)) d1(.clk(clk), .in(z[31]), .out(sign));
  assign t_out = {sign, bent[30:0]};
  delay #(.W(64), .D(2 * L + 1)) d2(.clk(clk), .in({half, middle}), .out({half_on, middle_on}));
  fmadd #(.L(L)) f2(.clk(clk), .a(half_on), .b(t_out), .c(middle_on), .q(action));
  wire [31:0] rest, slope_back, d_on, half_late;
  fmadd #(.L(L)) f3(.clk(clk), .a({!t[31], t[30:0]}), .b(t), .c(32'h3f800000), .q(rest));
  delay #(.W(32), .D(L)) d3(.clk(clk), .in(half_back), .out(half_late));
  fmadd #(.L(L)) f4(.clk(clk), .a(half_late), .b(rest), .c(32'd0), .q(slope_back));
  delay #(.W(32), .D(2 * L)) d4(.clk(clk), .in(d), .out(d_on));
  fmadd #(.L(L)) f5(.clk(clk), .a(d_on), .b(slope_back), .c(32'd0), .q(back));
endmodule
