// The N x N output-stationary array of multiply-accumulate elements.
//
// In cycle t the array takes column k of a tile of A (N words) and row k of a tile of B. `first` and
// `last` travel with the data, so tiles follow each other without a cycle between them, where each
// is fed for at least 2N cycles. An element keeps its sum in one register, from which sums leave
// upwards, against the skew of the operands: row r of the tile is on `out` N + L + 2r cycles after
// its last operands were on the inputs.

module element #(parameter L = 4) (
    input clk, input [31:0] a, b, input keep, last, input [31:0] below,
    output reg [31:0] a_on, b_on, output reg keep_on, last_on, output reg [31:0] up);
  wire [31:0] q;
  wire done;
  fmac #(.L(L)) mac(.clk(clk), .a(a), .b(b), .keep(keep), .q(q));
  delay #(.W(1), .D(L)) wait_for_sum(.clk(clk), .in(last), .out(done));
  always @(posedge clk) begin
    a_on <= a;
    b_on <= b;
    keep_on <= keep;
    last_on <= last;
    up <= done ? q : below;
  end
endmodule

module array #(parameter N = 4, L = 4) (
    input clk, input [32*N-1:0] a, b, input first, last, output [32*N-1:0] out);
  wire [31:0] east [0:N*(N+1)-1], south [0:(N+1)*N-1], up [0:(N+1)*N-1];
  wire [1:0] flags [0:N*(N+1)-1];  // {keep, last}
  genvar r, c;
  generate
    for (r = 0; r < N; r = r + 1) begin : row
      delay #(.W(34), .D(r)) skew(.clk(clk), .in({!first, last, a[32*r +: 32]}),
          .out({flags[r*(N+1)], east[r*(N+1)]}));
      for (c = 0; c < N; c = c + 1) begin : column
        element #(.L(L)) e(.clk(clk), .a(east[r*(N+1) + c]), .b(south[r*N + c]),
            .keep(flags[r*(N+1) + c][1]), .last(flags[r*(N+1) + c][0]), .below(up[(r+1)*N + c]),
            .a_on(east[r*(N+1) + c + 1]), .b_on(south[(r+1)*N + c]),
            .keep_on(flags[r*(N+1) + c + 1][1]), .last_on(flags[r*(N+1) + c + 1][0]),
            .up(up[r*N + c]));
      end
    end
    for (c = 0; c < N; c = c + 1) begin : edge_
      delay #(.W(32), .D(c)) skew(.clk(clk), .in(b[32*c +: 32]), .out(south[c]));
      delay #(.W(32), .D(N - 1 - c)) align(.clk(clk), .in(up[c]), .out(out[32*c +: 32]));
      assign up[N*N + c] = 32'd0;
    end
  endgenerate
endmodule
