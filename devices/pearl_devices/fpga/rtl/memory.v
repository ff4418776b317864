// Delay lines and memories.

// `out` is `in` of D cycles ago.
module delay #(parameter W = 1, D = 1) (input clk, input [W-1:0] in, output [W-1:0] out);
  generate
    if (D == 0) assign out = in;
    else begin : some
      reg [W*D-1:0] line;
      if (D == 1) always @(posedge clk) line <= in;
      else always @(posedge clk) line <= {line[W*(D-1)-1:0], in};
      assign out = line[W*D-1 -: W];
    end
  endgenerate
endmodule

// One memory of words, one port to write and one to read: `rdata` one cycle after `raddr`.
module ram #(parameter W = 32, DEPTH = 16, A = 16) (
    input clk, we, input [A-1:0] waddr, input [W-1:0] wdata,
    input [A-1:0] raddr, output reg [W-1:0] rdata);
  localparam B = $clog2(DEPTH > 1 ? DEPTH : 2);
  reg [W-1:0] mem [0:DEPTH-1];
  always @(posedge clk) begin
    if (we) mem[waddr[B-1:0]] <= wdata;
    rdata <= mem[raddr[B-1:0]];
  end
endmodule

// Rows of N words with a write mask by word: `rdata` two cycles after `raddr`.
module rows #(parameter N = 4, DEPTH = 16, A = 16) (
    input clk, input [N-1:0] we, input [A-1:0] waddr, input [32*N-1:0] wdata,
    input [A-1:0] raddr, output reg [32*N-1:0] rdata);
  wire [32*N-1:0] word;
  genvar c;
  generate
    for (c = 0; c < N; c = c + 1) begin : column
      ram #(.W(32), .DEPTH(DEPTH), .A(A)) m(.clk(clk), .we(we[c]), .waddr(waddr),
          .wdata(wdata[32*c +: 32]), .raddr(raddr), .rdata(word[32*c +: 32]));
    end
  endgenerate
  always @(posedge clk) rdata <= word;
endmodule

// Matrices in blocks of N x N words that are read by row or by column. Element (r, c) of a block is
// word r of the block in memory (r + c) mod N, so a row and a column both touch each memory once.
// rblock, rlane: the block, and the row or (rcol) the column of it; `rdata` two cycles later.
module banks #(parameter N = 4, LN = 2, BLOCKS = 4, A = 16) (
    input clk, input [N-1:0] we, input [A-1:0] wblock, input [LN-1:0] wrow, input [32*N-1:0] wdata,
    input [A-1:0] rblock, input [LN-1:0] rlane, input rcol, output reg [32*N-1:0] rdata);
  wire [32*N-1:0] word;
  reg [LN-1:0] lane;
  wire [2*32*N-1:0] twice = {word, word}, source = {wdata, wdata} << (32 * wrow);
  wire [2*N-1:0] mask = {we, we} << wrow;
  genvar b;
  generate
    for (b = 0; b < N; b = b + 1) begin : bank
      localparam [LN-1:0] here = b;
      wire [LN-1:0] row = rcol ? here - rlane : rlane;
      ram #(.W(32), .DEPTH(BLOCKS * N), .A(A + LN)) m(.clk(clk), .we(mask[N + b]),
          .waddr({wblock, wrow}), .wdata(source[32*(N + b) +: 32]),
          .raddr({rblock, row}), .rdata(word[32*b +: 32]));
    end
  endgenerate
  always @(posedge clk) begin
    lane <= rlane;
    rdata <= twice >> (32 * lane);
  end
endmodule
