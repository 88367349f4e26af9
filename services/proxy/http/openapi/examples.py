"""Examples in the OpenAPI document. `VALUES`: of named schemas; `BODIES`: of operations' bodies, by a name;
`RESPONSES`: of their responses, by status.
"""

from __future__ import annotations

from typing import Any, Final

_TASK = {"stages": [{"name": "tests", "kind": "code.asserts", "params": {"timeout_s": 3}}], "batch_size": 512}
_REWARD = {
    "request_id": "step-7/sample-12",
    "params": {"code": "def add(a, b):\n    return a + b", "tests": "assert add(1, 2) == 3"},
}
_ANSWER = {
    "id": "01k3v4nq8zt6",
    "state": "finished",
    "ended": "ok",
    "passed": True,
    "score": 1.0,
    "act": {"queue_s": 0.0004, "execution_s": 0.021, "overhead_s": 0.0031, "total_s": 0.0245},
}
_KERNEL = {
    "code": 'extern "C" __global__ void twice(const float* a, float* out, int n) {\n'
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) out[i] = 2 * a[i];\n}\n",
    "kernel": "twice",
    "arguments": [
        {"name": "a", "role": "input", "dtype": "float32", "shape": ["n"]},
        {"name": "out", "role": "output", "dtype": "float32", "shape": ["n"]},
        {"name": "n", "role": "scalar", "dtype": "int32", "value": "n"},
    ],
    "launch": {"grid": ["ceildiv(n, 256)"], "block": [256]},
    "cases": [{"sizes": {"n": 1048576}}],
    "reference": "def reference(a, n):\n    return 2 * a\n",
}
_PROBLEM = {
    "type": "https://treadle.example/problems/bad-request",
    "title": "Bad request",
    "status": 422,
    "detail": "params of noop: unknown field `ecko`; the fields are `echo`",
}
_RETRIEVE = {"queries": ["What is a mesh?", "Who wrote RFC 6585?"], "topk": 3, "return_scores": True}

_QUOTA = {
    "name": "search",
    "concurrency": 32,
    "held": 31,
    "actions": 31,
    "rates": [
        {"limit": 10, "period_s": 1, "burst": 10, "unit": "", "taken": 9.4, "free": 0.6, "full_at": 1764000000.94},
        {
            "limit": 1000,
            "period_s": 86400,
            "burst": 1000,
            "unit": "",
            "taken": 412.7,
            "free": 587.3,
            "full_at": 1764035657.3,
        },
    ],
    "upstream": {"state": "slowed", "not_before": 1764000002.5, "most": 31, "reason": "HTTP 429, Retry-After 2"},
    "weights": {"research": 2},
    "waiting": {"research": {"actions": 12, "amount": 12}, "default": {"actions": 3, "amount": 3}},
    "waiting_actions": 15,
    "next_free_at": 1764000002.5,
}
_TAKEN = {
    "type": "https://treadle.example/problems/quota-taken",
    "title": "Quota taken",
    "status": 429,
    "detail": "1 of search could not be granted within 20 s: the rate 1000/d of quota 'search' is used up",
    "retry_after_s": 86.4,
}

VALUES: Final[dict[str, list[Any]]] = {
    "Answer": [_ANSWER],
    "Problem": [_PROBLEM],
    "QuotaLease": [{"lease": "01k3v4nq8zt6", "fence": 17, "expires_in_s": 20.0, "expires_at": 1764000020.0}],
    "QuotaView": [_QUOTA],
    "ResultLine": [{"cursor": "1764000000000-0", **_ANSWER}],
}

RESPONSES: Final[dict[str, dict[int, Any]]] = {"acquire": {429: _TAKEN}}

BODIES: Final[dict[str, dict[str, Any]]] = {
    "put_task": {
        "unit tests": _TASK,
        "an answer": {"stages": [{"name": "match", "kind": "answer.match"}]},
        "a search tool": {
            "stages": [
                {
                    "name": "search",
                    "kind": "search.retrieve",
                    "params": {"url": "https://search.example.com/retrieve"},
                    "quotas": {"search": 1},
                }
            ]
        },
    },
    "open_batch": {"a training step": {"size": 512, "key": "step-7"}},
    "report_progress": {"still generating": {"generating": 3, "lengths": [812, 1400, 96]}},
    "post_action": {
        "asserts": {"kind": "code.asserts", "params": _REWARD["params"]},
        "a program": {"kind": "code.run", "params": {"code": "print(6 * 7)"}, "units": {"cores": [1, 4]}},
        "a core and a slot": {"kind": "code.run", "params": {"code": "print(6 * 7)"}, "quotas": {"search": 1}},
        "a judge": {
            "kind": "http",
            "params": {
                "method": "POST",
                "url": "https://judge.example/v1/chat/completions",
                "headers": {"Authorization": {"secret": "judge_key"}},
                "json": {"model": "judge", "messages": [{"role": "user", "content": "Grade from 0 to 10: {answer}"}]},
                "values": {"answer": "42"},
                "extract": {"pointer": "/choices/0/message/content", "scale": 0.1, "pass_at": 0.5},
                "used": {"judge-tokens": {"pointer": "/usage/total_tokens"}},
            },
            "quotas": {"judge": 1, "judge-tokens": 800},
        },
        "a CUDA kernel": {"kind": "cuda.kernel", "params": _KERNEL},
        "nothing": {"kind": "noop"},
    },
    "park_action": {"a model call": {"reason": "waits for a model call"}},
    "put_tenant": {"twice the share": {"weight": 2.0}},
    "put_quota": {
        "a search API": {
            "concurrency": 32,
            "rates": [{"limit": 10, "period_s": 1, "burst": 10}, {"limit": 1000, "period_s": 86400}],
        },
        "tokens a minute": {"rates": [{"limit": 200000, "period_s": 60, "unit": "tokens"}]},
        "a budget": {"rates": [{"limit": 50, "unit": "usd"}]},
        "two teams": {"concurrency": 16, "weights": {"research": 2, "product": 1}},
    },
    "put_service": {
        "a second service of an entry": {"entry": "judge-a", "concurrency": 8, "priority": 1},
        "a whole entry": {
            "backend": "vllm",
            "model": "Qwen/Qwen3-8B",
            "command": ["vllm", "serve", "{model}", "--port", "{port}", "--enable-sleep-mode"],
            "memory_gb": {"awake": 70, "asleep": 2},
            "canary": {"prompt": "2+2=", "expect": "4"},
        },
    },
    "acquire": {
        "one call": {"quotas": {"search": 1}, "wait_s": 20, "ttl_s": 20},
        "a call and its tokens": {"quotas": {"judge": 1, "judge-tokens": 800}},
    },
    "renew_lease": {"by its holder": {"fence": 17}},
    "release_lease": {"by its holder": {"fence": 17}},
    "settle_lease": {"fewer tokens than reserved": {"fence": 17, "used": {"judge-tokens": 712}}},
    "post_reward": {"one sample": {"task": "humaneval", **_REWARD}},
    "post_rewards": {"one line": '{"params": {"code": "def f(): return 1", "tests": "assert f() == 1"}}\n'},
    "post_trajectory": {"a local environment": {"environment": {"memory_mb": 256}, "group": "issue-12"}},
    "patch_trajectory": {"ten minutes earlier": {"priority": -600.0}},
    "post_trajectory_action": {
        "a shell": {"kind": "env.bash", "params": {"line": "cd /tmp && ls"}},
        "a file": {"kind": "env.write", "params": {"path": "hello.txt", "content": "hello\n"}},
    },
    "run_code": {"python": {"code": "print(6 * 7)", "language": "python"}},
    "run_code_of_task": {"python": {"code": "print(6 * 7)", "language": "python"}},
    "retrieve": {"two queries": _RETRIEVE, "SkyRL": {"query": "What is a mesh?", "topk": 3, "return_scores": True}},
    "retrieve_by_task": {"two queries": _RETRIEVE},
    "swerex_create_session": {"the default shell": {"session": "default"}},
    "swerex_run_in_session": {"a command": {"action_type": "bash", "command": "pwd"}},
    "swerex_close_session": {"the default shell": {"session": "default"}},
    "swerex_execute": {"a line": {"command": "ls -l", "shell": True}},
    "swerex_read_file": {"a file": {"path": "hello.txt"}},
    "swerex_write_file": {"a file": {"path": "hello.txt", "content": "hello\n"}},
}
