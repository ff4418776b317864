// Sets priorities and draws leaves, round after round, and compares every leaf, every total and the cycles
// with the golden vectors. Prints PASS, or FAIL with the first difference.
`timescale 1ns / 1ps
`include "parameters.vh"
module testbench;
  localparam A = `D * `LK;
  reg clk = 0, rst = 1, draw_in = 0, set_in = 0;
  reg [`TOTAL-1:0] prefix = 0;
  reg [A-1:0] at = 0;
  reg [`W-1:0] value = 0;
  wire draw_out, set_out;
  wire [A-1:0] leaf;
  wire [`TOTAL-1:0] rest, total;
  reg [A-1:0] leaves [0:`ROUNDS*`REQUESTS-1], golden [0:`ROUNDS*`REQUESTS-1];
  reg [`W-1:0] values [0:`ROUNDS*`REQUESTS-1];
  reg [`TOTAL-1:0] prefixes [0:`ROUNDS*`REQUESTS-1], totals [0:`ROUNDS-1];
  integer round, first, asked, got, cycles, wrong = 0;

  tree #(.K(`K), .LK(`LK), .D(`D), .W(`W), .CAPACITY(`CAPACITY), .TOTAL(`TOTAL)) dut(.clk(clk), .rst(rst),
      .draw_in(draw_in), .prefix(prefix), .draw_out(draw_out), .leaf(leaf), .rest(rest), .set_in(set_in),
      .at(at), .value(value), .set_out(set_out), .total(total));
  always #2 clk = !clk;
  genvar l;
  generate  // memories start as 0, as block RAM does
    for (l = 0; l < `D; l = l + 1) begin : clear
      localparam SPAN = (`D - l) * `LK;
      integer i;
      initial for (i = 0; i < (`CAPACITY + (1 << SPAN) - 1) >> SPAN; i = i + 1)
        dut.levels[l].one.memory.mem[i] = 0;
    end
  endgenerate

  // Inputs change on the falling edge; outputs are read before the rising one.
  task different(input integer what, input [`TOTAL-1:0] found, input [`TOTAL-1:0] wanted);
    begin
      if (wrong == 0) $display("round %0d: %s %0d, not %0d", round,
          what == 0 ? "leaf" : what == 1 ? "total" : "cycles", found, wanted);
      wrong = wrong + 1;
    end
  endtask

  initial begin
    $readmemh("leaves.hex", leaves);
    $readmemh("values.hex", values);
    $readmemh("prefixes.hex", prefixes);
    $readmemh("golden_leaves.hex", golden);
    $readmemh("golden_totals.hex", totals);
    for (round = 0; round < 4; round = round + 1) @(negedge clk);
    rst = 0;
    @(negedge clk);
    for (round = 0; round < `ROUNDS; round = round + 1) begin
      first = round * `REQUESTS;
      {asked, got, cycles} = 0;
      while (got < `REQUESTS & cycles < 2 * `SET_CYCLES) begin  // one set in three cycles
        set_in = asked < `REQUESTS & cycles % 3 == 0;
        if (set_in) begin
          at = leaves[first + asked];
          value = values[first + asked];
          asked = asked + 1;
        end
        @(negedge clk);
        cycles = cycles + 1;
        if (set_out) got = got + 1;
      end
      set_in = 0;
      if (cycles != `SET_CYCLES) different(2, cycles, `SET_CYCLES);
      @(negedge clk);
      if (total !== totals[round]) different(1, total, totals[round]);
      {asked, got, cycles} = 0;
      while (got < `REQUESTS & cycles < 2 * `DRAW_CYCLES + 16) begin  // one draw a cycle
        draw_in = asked < `REQUESTS;
        if (draw_in) begin
          prefix = prefixes[first + asked];
          asked = asked + 1;
        end
        @(negedge clk);
        cycles = cycles + 1;
        if (draw_out) begin
          if (leaf !== golden[first + got]) different(0, leaf, golden[first + got]);
          got = got + 1;
        end
      end
      draw_in = 0;
      if (cycles != `DRAW_CYCLES) different(2, cycles, `DRAW_CYCLES);
    end
    if (wrong == 0) $display("PASS: %0d sets, %0d draws", `ROUNDS * `REQUESTS, `ROUNDS * `REQUESTS);
    else $display("FAIL: %0d wrong", wrong);
    $finish;
  end
endmodule
