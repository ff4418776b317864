// The learner: one update of a dense network after another, as its program says.
//
// A program is a list of instructions of 256 bits (`program.py` writes them): LOAD rows from the batch
// stream, STORE rows to the output, MUL two matrices, LOSS, NORM, ADAM over one matrix, SQUASH and BACK
// (tanh of DDPG's actor and its gradient), HALT. Each ends before the next begins, but for an ADAM that
// does not wait. Matrices lie in blocks of N x N: activations and gradients by activations in memory A,
// parameters and the latter in memory B, which both give rows or columns. Targets, moments and the
// gradient by parameters have the places of their parameters. A batch may come in sub-batches: a MUL of
// the gradient goes on with the sums of the MUL before, in N more terms, so it adds in the same order.
module engine #(parameter N = 4, LN = 2, P = 4, LP = 0, L = 4, BLOCKS_A = 16, BLOCKS_B = 16, BLOCKS_W = 16,
    HEADS = 16, SAMPLES = 16, PROGRAM = 256, ACTOR = 1, BW = 4) (
    input clk, rst, start, input [7:0] start_at,
    input program_we, input [7:0] program_at, input [255:0] program_data,
    input set_we, input [3:0] set_at, input [31:0] set_data,
    input in_valid, output in_ready, input [32*BW-1:0] in_data,
    output out_valid, output [32*N-1:0] out_data,
    output td_valid, output [31:0] td, output idle);
  localparam HALT = 0, LOAD = 1, STORE = 2, MUL = 3, LOSS = 4, NORM = 5, ADAM = 6, SQUASH = 7, BACK = 8;
  localparam IDLE = 0, FETCH = 1, INIT = 2, RUN = 3, WAIT = 4;

  // The program and the settings: b1 r1 b2 r2 eps tau clip delta inv_rows actor_slope.
  reg [255:0] list [0:PROGRAM-1];
  reg [255:0] ir;
  reg [31:0] setting [0:15];
  reg [31:0] size, root;
  reg [1:0] mode;
  reg [7:0] pc;
  reg [2:0] state;
  always @(posedge clk) begin
    if (program_we) list[program_at] <= program_data;
    if (set_we) setting[set_at] <= set_data;
  end

  wire [3:0] op = ir[3:0];
  wire acol = ir[4], ones = ir[5], brow = ir[6], from_target = ir[7], relu = ir[8], masks = ir[9],
      waits = ir[10], variant = ir[11];
  wire [7:0] where = ir[19:12];
  wire [11:0] k = ir[31:20], rt = ir[43:32], ct = ir[55:44];
  wire [7:0] rl = ir[63:56], cl = ir[71:64], lane0 = ir[79:72];
  wire [15:0] abase = ir[95:80], bbase = ir[143:128], dbase = ir[191:176], dbase2 = ir[207:192];
  wire [11:0] a_sr = ir[107:96], a_sk = ir[119:108], b_sc = ir[155:144], b_sk = ir[167:156],
      d_sr = ir[219:208];
  // where: of a LOAD and a STORE one of these, of a MUL one or more
  wire to_a = where[0], to_b = where[1], to_g = where[2], to_h = where[3], to_ht = where[4];
  localparam AT_A = 0, AT_B = 1, AT_T = 2, AT_M = 3, AT_V = 4, AT_SAMPLE = 5, AT_STEP = 6, AT_BOUNDS = 7;
  // (a STORE from 8 and on is of the outputs)

  // The walk over tiles: rows first; of LOAD, STORE and ADAM over the rows of each tile too.
  reg [11:0] tr, tc;
  reg [15:0] block;
  reg [LN-1:0] row;
  reg [LP:0] part;
  wire last_tile_row = tr == rt - 12'd1, last_tile_column = tc == ct - 12'd1;
  wire last_row = row == (last_tile_row ? rl[LN-1:0] - 1'b1 : {LN{1'b1}});
  wire last_part = op != ADAM | part == N / P - 1;
  wire running = state == RUN;
  wire load = running & op == LOAD & in_valid, store = running & op == STORE,
      adam = running & op == ADAM;
  assign in_ready = running & op == LOAD;
  wire walk = load | store | adam;
  wire walked = walk & last_part & last_row & last_tile_column & last_tile_row;

  // MUL: k products of a tile, then idle cycles until it has taken 2N. With `variant` the first N are
  // rows of the gradient times those of the unit matrix, so the tile's sums go on where they were.
  reg [11:0] kk, beat, beats;
  reg [15:0] a_at, a_tile, b_at, b_tile;
  wire issue = running & op == MUL;
  wire live = issue & kk < k;
  wire tile_end = beat == beats - 12'd1;
  wire issued = live & kk == k - 12'd1;
  wire on = issue & variant & kk < N;
  reg all_issued;

  wire [32*N-1:0] a_row, b_row, t_row, m_row, v_row, g_row, h_row, ht_row, hn_row;
  wire [LN-1:0] k_lane = kk[LN-1:0];
  wire now_one = ones & (acol ? kk == k - 12'd1 : last_tile_row);
  wire on2, one2, first2, last2;
  wire [LN-1:0] lane2;
  delay #(.W(4 + LN), .D(2)) d_feed(.clk(clk), .in({k_lane, on, now_one, live & kk == 12'd0, issued}),
      .out({lane2, on2, one2, first2, last2}));
  reg [32*N-1:0] a_in;
  integer j;
  always @* begin
    a_in = a_row;
    for (j = 0; j < N; j = j + 1)
      if (on2) a_in[32*j +: 32] = j == lane2 ? 32'h3f800000 : 32'd0;
      else if (one2 & (acol | j == rl - 1)) a_in[32*j +: 32] = 32'h3f800000;
  end
  wire [32*N-1:0] sums;
  array #(.N(N), .L(L)) products(.clk(clk), .a(a_in), .b(on2 ? g_row : from_target ? t_row : b_row),
      .first(first2), .last(last2), .out(sums));

  // Its results: a row every second cycle; ReLU, its mask, and zeros beside the matrix.
  wire ready;
  delay #(.W(1), .D(N + L + 1)) d_ready(.clk(clk), .in(issued & !rst), .out(ready));
  reg active;
  reg [LN:0] beat_out;
  reg [11:0] or_, oc;
  reg [15:0] oblock, oblock2;
  wire emit = active & !beat_out[0];
  reg emit2, end2;
  reg [32*N-1:0] raw;
  reg [LN-1:0] row2;
  reg [15:0] block_a2, block_b2;
  reg edge2;
  wire [N-1:0] bits;
  reg [32*N-1:0] result;
  reg [N-1:0] positive;
  always @* begin
    result = raw;
    for (j = 0; j < N; j = j + 1) begin
      if (edge2 & j >= cl) result[32*j +: 32] = 32'd0;
      if (relu & raw[32*j + 31]) result[32*j +: 32] = 32'd0;
      if (masks & !bits[j]) result[32*j +: 32] = 32'd0;
      positive[j] = !raw[32*j + 31] & raw[32*j + 23 +: 8] != 8'd0;
    end
  end
  wire last_out_row = or_ == rt - 12'd1;
  wire real_row = !last_out_row | beat_out[LN:1] < rl;
  ram #(.W(N), .DEPTH(BLOCKS_A * N), .A(16 + LN)) mask(.clk(clk), .we(emit2 & to_a & relu),
      .waddr({block_a2, row2}), .wdata(positive), .raddr({oblock, beat_out[LN:1]}), .rdata(bits));

  // ADAM: P lanes, each N / P parameters of a row one after the other.
  localparam TO_M = 2 + 3 * L, TO_V = 2 + 4 * L, TO_W = 2 + 6 * L + 54, TO_T = 2 + 8 * L + 54;
  localparam AW = 16 + LN + LP + 1;
  wire [AW-1:0] place = {block, row, part};
  wire [AW-1:0] place_m, place_v, place_w, place_t;
  wire at_m, at_v, at_w, at_t, norm_ready;
  delay #(.W(1 + AW), .D(TO_M)) d_m(.clk(clk), .in({adam & !rst, place}), .out({at_m, place_m}));
  delay #(.W(1 + AW), .D(TO_V)) d_v(.clk(clk), .in({adam & !rst, place}), .out({at_v, place_v}));
  delay #(.W(1 + AW), .D(TO_W)) d_w(.clk(clk), .in({adam & !rst, place}), .out({at_w, place_w}));
  delay #(.W(1 + AW), .D(TO_T)) d_t(.clk(clk), .in({adam & !rst, place}), .out({at_t, place_t}));
  wire [LP:0] part2;
  delay #(.W(LP + 1), .D(2)) d_part(.clk(clk), .in(part), .out(part2));
  reg [11:0] drain;
  wire [32*P-1:0] w_new, t_new, m_new, v_new;
  wire [31:0] scale;
  wire [31:0] first_bit = 32 * P * part2;
  wire [32*P-1:0] w = b_row >> first_bit, t = t_row >> first_bit, m = m_row >> first_bit,
      v = v_row >> first_bit, g = g_row >> first_bit;
  genvar p;
  generate
    for (p = 0; p < P; p = p + 1) begin : lanes
      lane #(.L(L)) one(.clk(clk), .w(w[32*p +: 32]), .t(t[32*p +: 32]), .m(m[32*p +: 32]),
          .v(v[32*p +: 32]), .g(g[32*p +: 32]), .scale(scale), .b1(setting[0]), .r1(setting[1]),
          .b2(setting[2]), .r2(setting[3]), .eps(setting[4]), .tau(setting[5]), .size(size),
          .root(root), .mode(mode), .w_out(w_new[32*p +: 32]), .t_out(t_new[32*p +: 32]),
          .m_out(m_new[32*p +: 32]), .v_out(v_new[32*p +: 32]));
    end
  endgenerate
  function [N-1:0] words(input enable, input [LP:0] which);
    words = enable ? {{(N-P){1'b0}}, {P{1'b1}}} << (which * P) : {N{1'b0}};
  endfunction

  // The loss over the rows of the heads: h and hn hold the same, so that two rows are read at once.
  reg [11:0] sample;
  wire look = running & op == LOSS;
  wire [127:0] record;
  wire [31:0] record_action = record[127:96];
  wire look2, row_valid;
  wire [32*N-1:0] slopes;
  delay #(.W(1), .D(2)) d_look(.clk(clk), .in(look & !rst), .out(look2));
  reg [127:0] record2;
  always @(posedge clk) record2 <= record;
  loss #(.N(N), .LN(LN), .L(L)) losses(.clk(clk), .valid(look2), .double(variant), .acts(waits),
      .outputs({8'd0, cl}), .q(h_row), .qt(ht_row), .qn(hn_row), .reward(record2[31:0]),
      .discount(record2[63:32]), .weight(record2[95:64]), .action(record2[127:96]),
      .inv_rows(setting[8]), .delta(setting[7]), .actor_slope(setting[9]), .td_valid(td_valid), .td(td),
      .row_valid(row_valid), .row(slopes));
  reg [11:0] put;  // sample that is written next
  wire put_last = row_valid & put == k - 12'd1;

  norm #(.N(N), .L(L)) norms(.clk(clk), .rst(rst), .valid(emit2 & to_g & !waits), .row(result),
      .finish(state == INIT & op == NORM), .clip(setting[6]), .scale(scale), .ready(norm_ready));

  // SQUASH and BACK: component after component of sample after sample. Component c is word c of its
  // row on one side; on the other side words begin with lane0 of a block and go on in the next.
  reg [7:0] component;
  reg [LN-1:0] e_lane;
  reg [7:0] e_block;
  reg [15:0] e_count;
  wire element = running & (op == SQUASH | op == BACK);
  wire last_component = component == cl - 8'd1;
  localparam TO_S = 2 + 3 * L + 1, TO_B = 2 + 3 * L;
  reg [15:0] e_base, e_tail;  // of SQUASH and BACK: block of this sample's row, written and read
  wire [15:0] e_target = op == SQUASH ? e_base + {8'd0, e_block} : e_base;
  wire s_put, s_last, b_put, b_last, unused0, unused1;
  wire [15:0] s_block, b_block;
  wire [LN-1:0] s_row, s_word, b_row_at, b_word;
  wire e_last = element & last_component & sample == k - 12'd1;
  wire [31:0] action, back;
  generate
    if (ACTOR) begin : actor
      reg [32*N-1:0] middle, half;
      always @(posedge clk) if (load & where == AT_BOUNDS) {half, middle} <= {in_data[32*N-1:0], half};
      wire [LN-1:0] word2, word_back2;
      wire [31:0] t_new_, t_old;
      wire t_put;
      wire [15:0] t_at, count2;
      delay #(.W(LN), .D(2)) d0(.clk(clk), .in(op == SQUASH ? component[LN-1:0] : e_lane), .out(word2));
      delay #(.W(LN), .D(2)) d1(.clk(clk), .in(component[LN-1:0]), .out(word_back2));
      delay #(.W(17), .D(2 + 2 * L + 1)) d2(.clk(clk), .in({element & op == SQUASH & variant, e_count}),
          .out({t_put, t_at}));
      delay #(.W(16), .D(1)) d3(.clk(clk), .in(e_count), .out(count2));
      ram #(.W(32), .DEPTH(SAMPLES * N), .A(16)) kept(.clk(clk), .we(t_put), .waddr(t_at), .wdata(t_new_),
          .raddr(count2), .rdata(t_old));
      wire [31:0] z = h_row >> (32 * word2), d = ht_row >> (32 * word2),
          h = half >> (32 * word_back2), mid = middle >> (32 * word_back2);
      squash #(.L(L)) curve(.clk(clk), .z(z), .half(h), .middle(mid), .t_out(t_new_), .action(action),
          .d(d), .t(t_old), .half_back(h), .back(back));
    end else begin : plain
      assign action = 32'd0;
      assign back = 32'd0;
    end
  endgenerate
  delay #(.W(18 + 2 * LN), .D(TO_S)) d_s(.clk(clk), .in({element & op == SQUASH & !rst, e_last, e_target,
      sample[LN-1:0], e_lane}), .out({s_put, s_last, s_block, s_row, s_word}));
  delay #(.W(18 + 2 * LN), .D(TO_B)) d_b(.clk(clk), .in({element & op == BACK & !rst, e_last, e_target,
      sample[LN-1:0], component[LN-1:0]}), .out({b_put, b_last, b_block, b_row_at, b_word}));

  // Memories: each has one port to write, which one instruction at a time uses, and one to read.
  wire [32*N-1:0] stream = in_data[32*N-1:0];
  wire write_a = emit2 & to_a, write_b = emit2 & to_b;
  wire put_row = row_valid;
  wire [15:0] put_a = dbase + {4'd0, put >> LN}, put_b = dbase2 + {4'd0, put >> LN};
  wire [15:0] b_block2 = b_block - dbase + dbase2;
  banks #(.N(N), .LN(LN), .BLOCKS(BLOCKS_A), .A(16)) a_memory(.clk(clk),
      .we(write_a | put_row | (load & where == AT_A) ? {N{1'b1}}
          : s_put ? {{(N-1){1'b0}}, 1'b1} << s_word : b_put ? {{(N-1){1'b0}}, 1'b1} << b_word : {N{1'b0}}),
      .wblock(write_a ? block_a2 : put_row ? put_a : s_put ? s_block : b_put ? b_block : block),
      .wrow(write_a ? row2 : put_row ? put[LN-1:0] : s_put ? s_row : b_put ? b_row_at : row),
      .wdata(write_a ? result : put_row ? slopes : s_put ? {N{action}} : b_put ? {N{back}} : stream),
      .rblock(a_at), .rlane(k_lane), .rcol(acol), .rdata(a_row));
  banks #(.N(N), .LN(LN), .BLOCKS(BLOCKS_B), .A(16)) b_memory(.clk(clk),
      .we(write_b | put_row | (load & where == AT_B) ? {N{1'b1}}
          : b_put ? {{(N-1){1'b0}}, 1'b1} << b_word : words(at_w, place_w[LP:0])),
      .wblock(write_b ? block_b2 : put_row ? put_b : b_put ? b_block2 : at_w ? place_w[AW-1 -: 16] : block),
      .wrow(write_b ? row2 : put_row ? put[LN-1:0] : b_put ? b_row_at : at_w ? place_w[LP+1 +: LN] : row),
      .wdata(write_b ? result : put_row ? slopes : b_put ? {N{back}} : at_w ? {(N/P){w_new}} : stream),
      .rblock(issue ? b_at : block), .rlane(issue ? k_lane : row), .rcol(issue & !brow), .rdata(b_row));
  rows #(.N(N), .DEPTH(BLOCKS_W * N), .A(16 + LN)) t_memory(.clk(clk),
      .we(load & where == AT_T ? {N{1'b1}} : words(at_t, place_t[LP:0])),
      .waddr(at_t ? place_t[AW-1 -: 16 + LN] : {block, row}), .wdata(at_t ? {(N/P){t_new}} : stream),
      .raddr(issue ? {b_at, k_lane} : {block, row}), .rdata(t_row));
  rows #(.N(N), .DEPTH(BLOCKS_W * N), .A(16 + LN)) m_memory(.clk(clk),
      .we(load & where == AT_M ? {N{1'b1}} : words(at_m, place_m[LP:0])),
      .waddr(at_m ? place_m[AW-1 -: 16 + LN] : {block, row}), .wdata(at_m ? {(N/P){m_new}} : stream),
      .raddr({block, row}), .rdata(m_row));
  rows #(.N(N), .DEPTH(BLOCKS_W * N), .A(16 + LN)) v_memory(.clk(clk),
      .we(load & where == AT_V ? {N{1'b1}} : words(at_v, place_v[LP:0])),
      .waddr(at_v ? place_v[AW-1 -: 16 + LN] : {block, row}), .wdata(at_v ? {(N/P){v_new}} : stream),
      .raddr({block, row}), .rdata(v_row));
  rows #(.N(N), .DEPTH(BLOCKS_W * N), .A(16 + LN)) g_memory(.clk(clk), .we({N{emit2 & to_g}}),
      .waddr({block_b2, row2}), .wdata(result), .raddr({block, issue ? k_lane : row}), .rdata(g_row));
  wire [15+LN:0] head = {block_a2, row2},
      head_at = element ? {tr, sample[LN-1:0]} : store ? {block, row} : {4'd0, sample},
      tail_at = element ? {e_tail + {8'd0, e_block}, sample[LN-1:0]} : {4'd0, sample};
  rows #(.N(N), .DEPTH(HEADS), .A(16 + LN)) h_memory(.clk(clk), .we({N{emit2 & to_h}}), .waddr(head),
      .wdata(result), .raddr(head_at), .rdata(h_row));
  rows #(.N(N), .DEPTH(HEADS), .A(16 + LN)) hn_memory(.clk(clk), .we({N{emit2 & to_h}}), .waddr(head),
      .wdata(result), .raddr({abase, {LN{1'b0}}} + {4'd0, sample}), .rdata(hn_row));
  rows #(.N(N), .DEPTH(HEADS), .A(16 + LN)) ht_memory(.clk(clk), .we({N{emit2 & to_ht}}), .waddr(head),
      .wdata(result), .raddr(tail_at), .rdata(ht_row));
  ram #(.W(128), .DEPTH(SAMPLES), .A(16)) records(.clk(clk), .we(load & where == AT_SAMPLE),
      .waddr({block[15-LN:0], row}), .wdata(in_data[127:0]), .raddr({4'd0, sample}), .rdata(record));

  wire store2;
  delay #(.W(1), .D(2)) d_store(.clk(clk), .in(store & !rst), .out(store2));
  assign out_valid = store2;
  assign out_data = where == AT_B ? b_row : where == AT_T ? t_row : where == AT_M ? m_row
      : where == AT_V ? v_row : h_row;
  assign idle = state == IDLE;

  wire over = op == MUL ? emit2 & end2
      : op == LOAD ? walked : op == STORE ? drain == 12'd2
      : op == LOSS ? put_last : op == NORM ? norm_ready
      : op == ADAM ? (waits ? drain == TO_T : walked)
      : op == SQUASH ? s_put & s_last : b_put & b_last;

  always @(posedge clk) begin
    // the walk
    if (walk) begin
      part <= last_part ? {(LP+1){1'b0}} : part + 1'b1;
      if (last_part) begin
        row <= last_row ? {LN{1'b0}} : row + 1'b1;
        if (last_row) begin
          block <= block + 16'd1;
          tc <= last_tile_column ? 12'd0 : tc + 12'd1;
          if (last_tile_column) tr <= tr + 12'd1;
        end
      end
    end
    if (load & where == AT_STEP) {mode, root, size} <= in_data[65:0];
    // the products
    if (issue & !all_issued) begin
      beat <= tile_end ? 12'd0 : beat + 12'd1;
      kk <= tile_end ? 12'd0 : kk < k ? kk + 12'd1 : kk;
      if (tile_end) begin
        block <= block + 16'd1;
        tc <= last_tile_column ? 12'd0 : tc + 12'd1;
        if (last_tile_column) begin
          tr <= tr + 12'd1;
          a_tile <= a_tile + {4'd0, a_sr};
          a_at <= a_tile + {4'd0, a_sr};
          b_tile <= bbase;
          b_at <= bbase;
        end else begin
          a_at <= a_tile;
          b_tile <= b_tile + {4'd0, b_sc};
          b_at <= b_tile + {4'd0, b_sc};
        end
      end else if (&k_lane & !on) begin
        a_at <= a_at + {4'd0, a_sk};
        b_at <= b_at + {4'd0, b_sk};
      end
    end
    if (issued & last_tile_row & last_tile_column) begin
      all_issued <= 1'b1;
      kk <= k;
    end
    if (ready) begin
      active <= 1'b1;
      beat_out <= {(LN+1){1'b0}};
    end else if (active) begin
      beat_out <= beat_out + 1'b1;
      if (&beat_out) active <= 1'b0;
    end
    if (active & (&beat_out)) begin
      oblock <= oblock + 16'd1;
      oblock2 <= oblock2 + 16'd1;
      oc <= oc == ct - 12'd1 ? 12'd0 : oc + 12'd1;
      if (oc == ct - 12'd1) or_ <= or_ + 12'd1;
    end
    emit2 <= emit & real_row & state == RUN;
    end2 <= oc == ct - 12'd1 & last_out_row & beat_out[LN:1] == rl - 8'd1;
    edge2 <= oc == ct - 12'd1;
    raw <= sums;
    row2 <= beat_out[LN:1];
    block_a2 <= oblock;
    block_b2 <= oblock2;
    // the loss, tanh and its gradient
    if (look) sample <= sample == k - 12'd1 ? sample : sample + 12'd1;
    if (row_valid) put <= put + 12'd1;
    if (element & !all_issued) begin
      e_count <= e_count + 16'd1;
      component <= last_component ? 8'd0 : component + 8'd1;
      e_lane <= last_component ? lane0[LN-1:0] : e_lane + 1'b1;
      e_block <= last_component ? 8'd0 : &e_lane ? e_block + 8'd1 : e_block;
      if (last_component) begin
        sample <= sample + 12'd1;
        if (&sample[LN-1:0]) begin
          tr <= tr + 12'd1;
          e_base <= e_base + {4'd0, d_sr};
          e_tail <= e_tail + {4'd0, ct};
        end
      end
      if (e_last) all_issued <= 1'b1;
    end
    if (drain != 12'd0 | walked) drain <= drain + 12'd1;

    case (state)
      IDLE: if (start) begin
        state <= FETCH;
        pc <= start_at;
      end
      FETCH: begin
        ir <= list[pc];
        pc <= pc + 8'd1;
        state <= INIT;
      end
      INIT: begin
        state <= op == HALT ? IDLE : RUN;
        {tr, tc, kk, beat, sample, put, or_, oc, drain} <= 108'd0;
        {row, part, component, e_block, e_count, all_issued, active} <= 0;
        e_lane <= lane0[LN-1:0];
        {e_base, e_tail} <= {dbase, 16'd0};
        block <= dbase;
        beats <= k > 2 * N ? k : 2 * N;
        {a_tile, a_at, b_tile, b_at} <= {abase, abase, bbase, bbase};
        {oblock, oblock2} <= {dbase, dbase2};
      end
      RUN: if (over) state <= FETCH;
           else if (walked | (look & sample == k - 12'd1) | e_last) state <= WAIT;
      WAIT: if (over) state <= FETCH;
    endcase
    if (rst) begin
      state <= IDLE;
      active <= 1'b0;
      emit2 <= 1'b0;
    end
  end
endmodule
