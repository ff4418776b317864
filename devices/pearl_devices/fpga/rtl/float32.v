// The boxes of boxes.v in plain Verilog, for simulators that know no black boxes. For synthesis take the
// hard blocks of the part instead. Compile either this file or boxes.v.

module fmul_comb (input [31:0] a, b, output reg [31:0] q);
  reg [47:0] wide;
  reg signed [10:0] exponent;
  reg [22:0] kept;
  reg guard, sticky;
  reg [34:0] rounded;
  always @* begin
    wide = {24'd0, 1'b1, a[22:0]} * {24'd0, 1'b1, b[22:0]};
    exponent = $signed({3'b000, a[30:23]}) + $signed({3'b000, b[30:23]}) - 11'sd127;
    if (wide[47]) begin
      exponent = exponent + 11'sd1;
      {kept, guard} = wide[46:23];
      sticky = wide[22:0] != 23'd0;
    end else begin
      {kept, guard} = wide[45:22];
      sticky = wide[21:0] != 22'd0;
    end
    rounded = {1'b0, exponent, kept} + {34'd0, guard & (sticky | kept[0])};
    if (a[30:23] == 8'd0 | b[30:23] == 8'd0) q = 32'd0;
    else if (exponent == 11'sd0 & (&kept)) q = {a[31] ^ b[31], 8'd1, 23'd0};  // rounds up to the least
    else if (exponent < 11'sd1) q = 32'd0;
    else if ($signed(rounded[33:23]) > 11'sd254) q = {a[31] ^ b[31], 8'd255, 23'd0};
    else q = {a[31] ^ b[31], rounded[30:0]};
  end
endmodule

module fadd_comb (input [31:0] a, b, output reg [31:0] q);
  reg [31:0] x, y;  // the larger and the smaller
  reg [7:0] apart;
  reg [50:0] major, minor;  // 24 bits, then 26 below and one above
  reg lost;
  reg [50:0] sum;
  reg signed [10:0] exponent;
  reg [22:0] kept;
  reg guard, sticky;
  reg [34:0] rounded;
  integer i;
  always @* begin
    {x, y} = a[30:0] >= b[30:0] ? {a, b} : {b, a};
    apart = x[30:23] - y[30:23];
    major = {1'b0, 1'b1, x[22:0], 26'd0};
    minor = y[30:23] == 8'd0 ? 51'd0 : {1'b0, 1'b1, y[22:0], 26'd0};
    lost = 1'b0;
    if (apart > 8'd26) begin
      lost = minor != 51'd0;
      minor = {50'd0, lost};
    end else minor = minor >> apart;
    sum = x[31] == y[31] ? major + minor : major - minor;
    exponent = $signed({3'b000, x[30:23]});
    if (sum[50]) begin
      exponent = exponent + 11'sd1;
      sum = {1'b0, sum[50:2], sum[1] | sum[0]};
    end
    for (i = 0; i < 50; i = i + 1)
      if (!sum[49] & sum != 51'd0) begin
        sum = sum << 1;
        exponent = exponent - 11'sd1;
      end
    {kept, guard} = sum[48:25];
    sticky = sum[24:0] != 25'd0;
    rounded = {1'b0, exponent, kept} + {34'd0, guard & (sticky | kept[0])};
    if (x[30:23] == 8'd0 | sum == 51'd0 | exponent < 11'sd1) q = 32'd0;
    else if ($signed(rounded[33:23]) > 11'sd254) q = {x[31], 8'd255, 23'd0};
    else q = {x[31], rounded[30:0]};
  end
endmodule

module fmac #(parameter L = 4) (input clk, input [31:0] a, b, input keep, output reg [31:0] q);
  wire [31:0] product, sum, late;
  wire keeps;
  fmul_comb m(.a(a), .b(b), .q(product));
  delay #(.W(33), .D(L - 1)) wait_(.clk(clk), .in({keep, product}), .out({keeps, late}));
  fadd_comb s(.a(q), .b(late), .q(sum));
  initial q = 32'd0;
  always @(posedge clk) q <= keeps ? sum : late;
endmodule

module fmadd #(parameter L = 4) (input clk, input [31:0] a, b, c, output [31:0] q);
  wire [31:0] product, sum;
  fmul_comb m(.a(a), .b(b), .q(product));
  fadd_comb s(.a(product), .b(c[30:23] == 8'd0 ? 32'd0 : c), .q(sum));
  delay #(.W(32), .D(L)) wait_(.clk(clk), .in(sum), .out(q));
endmodule
