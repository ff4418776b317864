// Correctly rounded quotient and root of float32, one bit a stage, one operand a cycle, 27 cycles.
// Not asked for and not served: infinities, NaN, negative radicands.

module fdiv (input clk, input [31:0] x, y, output reg [31:0] q);
  // 26 bits of the quotient of the significands, then a stage that rounds.
  reg [25:0] quotient [0:26];
  reg [24:0] rest [0:26];
  reg [23:0] divisor [0:26];
  reg signed [9:0] exponent [0:26];
  reg [1:0] sign [0:26];  // {sign, dividend is zero}
  always @* begin
    quotient[0] = 26'd0;
    rest[0] = {2'b01, x[22:0]};
    divisor[0] = {1'b1, y[22:0]};
    exponent[0] = $signed({2'b00, x[30:23]}) - $signed({2'b00, y[30:23]}) + 10'sd127;
    sign[0] = {x[31] ^ y[31], x[30:23] == 8'd0};
  end
  genvar i;
  generate
    for (i = 0; i < 26; i = i + 1) begin : stage
      wire [25:0] less = {1'b0, rest[i]} - {2'b00, divisor[i]};
      always @(posedge clk) begin
        quotient[i+1] <= {quotient[i][24:0], !less[25]};
        rest[i+1] <= {less[25] ? rest[i][23:0] : less[23:0], 1'b0};
        divisor[i+1] <= divisor[i];
        exponent[i+1] <= exponent[i];
        sign[i+1] <= sign[i];
      end
    end
  endgenerate
  wire [25:0] found = quotient[26];
  wire one = found[25];
  wire [22:0] kept = one ? found[24:2] : found[23:1];
  wire guard = one ? found[1] : found[0];
  wire sticky = (rest[26] != 25'd0) | (one & found[0]);
  wire signed [9:0] base = exponent[26] - (one ? 10'sd0 : 10'sd1);
  wire [33:0] rounded = {1'b0, base, kept} + {33'd0, guard & (sticky | kept[0])};
  wire signed [9:0] final_ = rounded[32:23];
  // All digits 1 just below the least normal number: halfway between it and the largest subnormal one.
  wire least = base == 10'sd0 & (&kept);
  always @(posedge clk)
    q <= sign[26][0] | (final_ < 10'sd1 & !least) ? 32'd0
       : least ? {sign[26][1], 8'd1, 23'd0}
       : final_ > 10'sd254 ? {sign[26][1], 8'd255, 23'd0}
       : {sign[26][1], final_[7:0], rounded[22:0]};
endmodule

module fsqrt (input clk, input [31:0] x, output reg [31:0] q);
  // A stage that aligns, 25 bits of the root, a stage that rounds.
  reg [49:0] radicand [0:25];
  reg [26:0] rest [0:25];
  reg [24:0] root [0:25];
  reg [8:0] exponent [0:25];  // {zero, exponent}
  always @(posedge clk) begin
    radicand[0] <= x[23] ? {2'b01, x[22:0], 25'd0} : {1'b1, x[22:0], 26'd0};
    rest[0] <= 27'd0;
    root[0] <= 25'd0;
    exponent[0] <= {x[30:23] == 8'd0, {1'b0, x[30:24]} + (x[23] ? 8'd64 : 8'd63)};
  end
  genvar i;
  generate
    for (i = 0; i < 25; i = i + 1) begin : stage
      wire [28:0] next = {rest[i], radicand[i][49:48]};
      wire [29:0] less = {1'b0, next} - {3'b000, root[i], 2'b01};
      always @(posedge clk) begin
        radicand[i+1] <= {radicand[i][47:0], 2'b00};
        rest[i+1] <= less[29] ? next[26:0] : less[26:0];
        root[i+1] <= {root[i][23:0], !less[29]};
        exponent[i+1] <= exponent[i];
      end
    end
  endgenerate
  wire [22:0] kept = root[25][23:1];
  wire up = root[25][0] & ((rest[25] != 27'd0) | kept[0]);
  always @(posedge clk)
    q <= exponent[25][8] ? 32'd0 : {1'b0, {exponent[25][7:0], kept} + {30'd0, up}};
endmodule
