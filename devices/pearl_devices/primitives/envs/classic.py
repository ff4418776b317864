"""The dynamics of gymnasium's classic control environments, in its arithmetic and order of
operations.

CartPole follows Barto, Sutton, Anderson 1983 (explicit Euler). Pendulum, MountainCar, Acrobot
(Sutton and Barto's book, Runge-Kutta of fourth order) and MountainCarContinuous follow the files
of `gymnasium.envs.classic_control`. Two quantities are float32, as in gymnasium: Pendulum's
torque, and MountainCarContinuous' state from the first step on (with numpy 2's promotion rules).

From equal states, MountainCar and MountainCarContinuous give gymnasium's bits. The other three give
gymnasium's bits if numpy's sine and cosine agree with those of the C library. Otherwise they differ
by at most 1e-12 of the value.

`X_move(state, n, action)` advances environment n by one step and returns (reward, terminated).
`X_reset(state, n, base)` draws its first state from a random stream, within gymnasium's bounds.
`X_observe(state, n, out)` writes its float32 observation. `state` is (environments, 4), float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pearl_devices.primitives.math.rng import uniform
from pearl_devices.primitives.native import fast

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, CART_STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL_KG = POLE_KG + CART_KG
POLE_KG_M = POLE_KG * HALF_POLE_M
ANGLE_LIMIT = 12 * 2 * math.pi / 360
TRACK_LIMIT_M = 2.4
PENDULUM_GRAVITY, PENDULUM_STEP_S, SPEED_LIMIT, TORQUE_LIMIT = 10.0, 0.05, 8.0, 2.0
PI, TWO_PI = math.pi, 2.0 * math.pi
HILL_LEFT, HILL_RIGHT, HILL_SPEED, HILL_GRAVITY = -1.2, 0.6, 0.07, 0.0025
HILL_FORCE, HILL_POWER, HILL_GOAL, HILL_GOAL_CONTINUOUS = 0.001, 0.0015, 0.5, 0.45
ACROBOT_STEP_S, ACROBOT_SPEED_1, ACROBOT_SPEED_2 = 0.2, 4 * math.pi, 9 * math.pi


@fast
def cartpole_reset(state, n, base):
    for j in range(4):
        state[n, j] = -0.05 + 0.1 * uniform(base, 4 * n + j)


@fast
def cartpole_move(state, n, action):
    x, x_dot, angle, angle_dot = state[n, 0], state[n, 1], state[n, 2], state[n, 3]
    force = FORCE_N if action == 1 else -FORCE_N
    cosine, sine = math.cos(angle), math.sin(angle)
    temp = (force + POLE_KG_M * (angle_dot * angle_dot) * sine) / TOTAL_KG
    angle_acc = (GRAVITY * sine - cosine * temp) / (
        HALF_POLE_M * (4.0 / 3.0 - POLE_KG * (cosine * cosine) / TOTAL_KG)
    )
    x_acc = temp - POLE_KG_M * angle_acc * cosine / TOTAL_KG
    x = x + CART_STEP_S * x_dot
    angle = angle + CART_STEP_S * angle_dot
    state[n, 0] = x
    state[n, 1] = x_dot + CART_STEP_S * x_acc
    state[n, 2] = angle
    state[n, 3] = angle_dot + CART_STEP_S * angle_acc
    return 1.0, abs(x) > TRACK_LIMIT_M or abs(angle) > ANGLE_LIMIT


@fast
def cartpole_observe(state, n, out):
    for j in range(4):
        out[n, j] = state[n, j]


@fast
def pendulum_reset(state, n, base):
    state[n, 0] = -PI + TWO_PI * uniform(base, 2 * n)
    state[n, 1] = -1.0 + 2.0 * uniform(base, 2 * n + 1)


@fast
def pendulum_move(state, n, torque):
    limit = np.float32(TORQUE_LIMIT)
    u = min(max(torque, -limit), limit)
    angle, speed = state[n, 0], state[n, 1]
    upright = ((angle + PI) % TWO_PI) - PI
    cost = upright * upright + 0.1 * (speed * speed) + np.float32(0.001) * (u * u)
    push = np.float32(3.0) * u
    speed = speed + (3 * PENDULUM_GRAVITY / 2.0 * math.sin(angle) + push) * PENDULUM_STEP_S
    speed = min(max(speed, -SPEED_LIMIT), SPEED_LIMIT)
    state[n, 0] = angle + speed * PENDULUM_STEP_S
    state[n, 1] = speed
    return -cost, False


@fast
def pendulum_observe(state, n, out):
    out[n, 0] = math.cos(state[n, 0])
    out[n, 1] = math.sin(state[n, 0])
    out[n, 2] = state[n, 1]


@fast
def mountain_car_reset(state, n, base):
    """state: position, velocity, and 1 once a step is done."""
    state[n, 0] = -0.6 + (-0.4 - -0.6) * uniform(base, n)
    state[n, 1] = 0.0
    state[n, 2] = 0.0


@fast
def mountain_car_move(state, n, action):
    position, velocity = state[n, 0], state[n, 1]
    velocity += (action - 1) * HILL_FORCE + math.cos(3 * position) * (-HILL_GRAVITY)
    velocity = min(max(velocity, -HILL_SPEED), HILL_SPEED)
    position = min(max(position + velocity, HILL_LEFT), HILL_RIGHT)
    if position == HILL_LEFT and velocity < 0.0:
        velocity = 0.0
    state[n, 0], state[n, 1], state[n, 2] = position, velocity, 1.0
    return -1.0, position >= HILL_GOAL and velocity >= 0.0


@fast
def mountain_car_observe(state, n, out):
    out[n, 0] = state[n, 0]
    out[n, 1] = state[n, 1]


@fast
def hill_first(position, velocity, push, pull):
    """Return the new (position, velocity) of the first step after a reset, in float64."""
    velocity += push - pull
    velocity = min(max(velocity, -HILL_SPEED), HILL_SPEED)
    position = min(max(position + velocity, HILL_LEFT), HILL_RIGHT)
    if position == HILL_LEFT and velocity < 0.0:
        velocity = 0.0
    return position, velocity, position >= HILL_GOAL_CONTINUOUS and velocity >= 0.0


@fast
def hill_next(position, velocity, push):
    """Return the new (position, velocity) of any later step; arguments are float32."""
    fastest = np.float32(HILL_SPEED)
    left, right = np.float32(HILL_LEFT), np.float32(HILL_RIGHT)
    velocity = min(max(velocity + push, -fastest), fastest)
    position = min(max(position + velocity, left), right)
    if position == left and velocity < np.float32(0.0):
        velocity = np.float32(0.0)
    done = position >= np.float32(HILL_GOAL_CONTINUOUS) and velocity >= np.float32(0.0)
    return position, velocity, done


@fast
def mountain_car_continuous_move(state, n, action):
    inside = abs(action) <= np.float32(1.0)
    push = np.float32(min(max(action, np.float32(-1.0)), np.float32(1.0)))
    # A force within its bounds stays a float32, and so does its product; a bound is a Python float.
    if state[n, 2] == 0.0:
        pull = HILL_GRAVITY * math.cos(3 * state[n, 0])
        if inside:
            force = np.float64(push * np.float32(HILL_POWER) - np.float32(pull))
            position, velocity, done = hill_first(state[n, 0], state[n, 1], force, 0.0)
        else:
            force = np.float64(push) * HILL_POWER
            position, velocity, done = hill_first(state[n, 0], state[n, 1], force, pull)
        state[n, 0], state[n, 1] = np.float32(position), np.float32(velocity)
    else:
        before = np.float32(state[n, 0])
        pull = HILL_GRAVITY * math.cos(np.float64(np.float32(3.0) * before))
        if inside:
            change = push * np.float32(HILL_POWER) - np.float32(pull)
        else:
            change = np.float32(np.float64(push) * HILL_POWER - pull)
        new_position, new_velocity, done = hill_next(before, np.float32(state[n, 1]), change)
        state[n, 0], state[n, 1] = new_position, new_velocity
    state[n, 2] = 1.0
    spent = np.float64(action)
    return (100.0 if done else 0.0) - spent * spent * 0.1, done


@fast
def acrobot_reset(state, n, base):
    for j in range(4):
        state[n, j] = np.float32(-0.1 + (0.1 - -0.1) * uniform(base, 4 * n + j))


@fast
def acrobot_slope(one, two, speed_one, speed_two, torque):
    """The two angular accelerations. Both links: 1 m, 1 kg, centre of mass in the middle."""
    cosine, sine = math.cos(two), math.sin(two)
    d1 = 0.25 + (1.25 + cosine) + 1.0 + 1.0
    d2 = (0.25 + 0.5 * cosine) + 1.0
    phi2 = 0.5 * GRAVITY * math.cos(one + two - PI / 2.0)
    phi1 = (
        -0.5 * (speed_two * speed_two) * sine
        - speed_two * speed_one * sine
        + 1.5 * GRAVITY * math.cos(one - PI / 2)
        + phi2
    )
    second = (torque + d2 / d1 * phi1 - 0.5 * (speed_one * speed_one) * sine - phi2) / (
        0.25 + 1.0 - d2 * d2 / d1
    )
    return -(d2 * second + phi1) / d1, second


@fast
def wrap(angle):
    while angle > PI:
        angle = angle - TWO_PI
    while angle < -PI:
        angle = angle + TWO_PI
    return angle


@fast
def acrobot_move(state, n, action):
    torque, h = np.float64(action) - 1.0, ACROBOT_STEP_S / 2.0
    a, b, c, d = state[n, 0], state[n, 1], state[n, 2], state[n, 3]
    k1c, k1d = acrobot_slope(a, b, c, d, torque)
    k2a, k2b = c + h * k1c, d + h * k1d
    k2c, k2d = acrobot_slope(a + h * c, b + h * d, k2a, k2b, torque)
    k3a, k3b = c + h * k2c, d + h * k2d
    k3c, k3d = acrobot_slope(a + h * k2a, b + h * k2b, k3a, k3b, torque)
    k4a, k4b = c + ACROBOT_STEP_S * k3c, d + ACROBOT_STEP_S * k3d
    k4c, k4d = acrobot_slope(a + ACROBOT_STEP_S * k3a, b + ACROBOT_STEP_S * k3b, k4a, k4b, torque)
    sixth = ACROBOT_STEP_S / 6.0
    one = wrap(a + sixth * (c + 2 * k2a + 2 * k3a + k4a))
    two = wrap(b + sixth * (d + 2 * k2b + 2 * k3b + k4b))
    speed_one = c + sixth * (k1c + 2 * k2c + 2 * k3c + k4c)
    speed_two = d + sixth * (k1d + 2 * k2d + 2 * k3d + k4d)
    state[n, 0], state[n, 1] = one, two
    state[n, 2] = min(max(speed_one, -ACROBOT_SPEED_1), ACROBOT_SPEED_1)
    state[n, 3] = min(max(speed_two, -ACROBOT_SPEED_2), ACROBOT_SPEED_2)
    done = -math.cos(one) - math.cos(two + one) > 1.0
    return 0.0 if done else -1.0, done


@fast
def acrobot_observe(state, n, out):
    out[n, 0], out[n, 1] = math.cos(state[n, 0]), math.sin(state[n, 0])
    out[n, 2], out[n, 3] = math.cos(state[n, 1]), math.sin(state[n, 1])
    out[n, 4], out[n, 5] = state[n, 2], state[n, 3]


class Dynamics(NamedTuple):
    """The compiled functions of one environment, as the module describes them."""

    move: Any
    observe: Any
    reset: Any


DYNAMICS = {
    "CartPole-v1": Dynamics(cartpole_move, cartpole_observe, cartpole_reset),
    "Pendulum-v1": Dynamics(pendulum_move, pendulum_observe, pendulum_reset),
    "Acrobot-v1": Dynamics(acrobot_move, acrobot_observe, acrobot_reset),
    "MountainCar-v0": Dynamics(mountain_car_move, mountain_car_observe, mountain_car_reset),
    "MountainCarContinuous-v0": Dynamics(
        mountain_car_continuous_move, mountain_car_observe, mountain_car_reset
    ),
}
"""Environment id → its dynamics."""
