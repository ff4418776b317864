// Runs the program once on the golden stream and compares every word that leaves the engine. Prints PASS,
// or FAIL with the first difference, and the cycles.
`timescale 1ns / 1ps
`include "parameters.vh"
module testbench;
  localparam ROW = 32 * `BW, OUT = 32 * `N;
  reg clk = 0, rst = 1, start = 0, program_we = 0, set_we = 0, in_valid = 0;
  reg [7:0] program_at = 0;
  reg [3:0] set_at = 0;
  reg [255:0] program_data = 0;
  reg [31:0] set_data = 0;
  reg [ROW-1:0] in_data = 0;
  wire in_ready, out_valid, td_valid, idle;
  wire [OUT-1:0] out_data;
  wire [31:0] td;
  reg [255:0] instructions [0:`PROGRAM-1];
  reg [31:0] settings [0:15];
  reg [ROW-1:0] stream [0:`BEATS-1];
  reg [OUT-1:0] golden_out [0:`OUTS-1];
  reg [31:0] golden_td [0:`TDS-1];
  integer i, beat = 0, outs = 0, tds = 0, cycles = 0, wrong = 0;

  engine #(.N(`N), .LN(`LN), .P(`P), .LP(`LP), .L(`L), .BLOCKS_A(`BLOCKS_A), .BLOCKS_B(`BLOCKS_B),
      .BLOCKS_W(`BLOCKS_W), .HEADS(`HEADS), .SAMPLES(`SAMPLES), .PROGRAM(`PROGRAM), .ACTOR(`ACTOR), .BW(`BW))
      dut(.clk(clk), .rst(rst), .start(start), .start_at(8'd0), .program_we(program_we),
      .program_at(program_at), .program_data(program_data), .set_we(set_we), .set_at(set_at),
      .set_data(set_data), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data),
      .out_valid(out_valid), .out_data(out_data), .td_valid(td_valid), .td(td), .idle(idle));
  always #2 clk = !clk;

  // Inputs change on the falling edge; outputs are read before the rising one.
  always @(negedge clk) begin
    in_valid <= beat < `BEATS;
    if (beat < `BEATS) in_data <= stream[beat];
  end
  always @(posedge clk) begin
    if (in_valid & in_ready) beat = beat + 1;
    if (out_valid) begin
      if (out_data !== golden_out[outs]) begin
        if (wrong == 0) $display("row %0d: %h, not %h", outs, out_data, golden_out[outs]);
        wrong = wrong + 1;
      end
      outs = outs + 1;
    end
    if (td_valid) begin
      if (tds < `TDS & td !== golden_td[tds]) begin
        if (wrong == 0) $display("td %0d: %h, not %h", tds, td, golden_td[tds]);
        wrong = wrong + 1;
      end
      tds = tds + 1;
    end
  end

  initial begin
    $readmemh("program.hex", instructions);
    $readmemh("settings.hex", settings);
    $readmemh("stream.hex", stream);
    $readmemh("golden_out.hex", golden_out);
    $readmemh("golden_td.hex", golden_td);
    // Delay lines are longer than any other reset: 8L + 56 cycles.
    for (i = 0; i < 8 * `L + 64; i = i + 1) @(negedge clk);
    rst = 0;
    for (i = 0; i < `PROGRAM; i = i + 1) begin
      program_we = 1; program_at = i; program_data = instructions[i];
      @(negedge clk);
    end
    program_we = 0;
    for (i = 0; i < 16; i = i + 1) begin
      set_we = 1; set_at = i; set_data = settings[i];
      @(negedge clk);
    end
    set_we = 0;
    start = 1;
    @(negedge clk);
    start = 0;
    cycles = 1;
    while (!idle & cycles < 2 * `CYCLES) begin
      @(negedge clk);
      cycles = cycles + 1;
    end
    if (wrong == 0 & outs == `OUTS & tds >= `TDS & cycles == `CYCLES)
      $display("PASS: %0d rows, %0d td, %0d cycles", outs, tds, cycles);
    else
      $display("FAIL: %0d wrong, %0d of %0d rows, %0d of %0d td, %0d cycles, not %0d", wrong, outs, `OUTS,
          tds, `TDS, cycles, `CYCLES);
    $finish;
  end
endmodule
