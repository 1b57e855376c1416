# ruff: noqa: RUF001 (the full-width marks are how Chinese is written)
"""What reports say, in English and in the Chinese of Taiwan, and how they print numbers.

A `Text` holds both languages: a page carries both and shows one, a terminal prints the English.
Sentences that come with a document are English; `translated` knows those that our own code writes.
"""

import math
import re
from dataclasses import dataclass
from html import escape

from tailproof.core.errors import ConfigError
from tailproof.reporting.document import Percentiles

LANGUAGES = {"en": "en", "zh-TW": "zh-Hant-TW"}
"""As in `--lang` -> as in HTML."""

MISS = "miss"
"""Instead of a percentile whose rank falls on a request without a good answer."""

UNRESOLVED = "~"
"""Before a percentile that the sample is too small to resolve."""


@dataclass(frozen=True, slots=True)
class Text:
    """The same words in both languages, unescaped."""

    en: str
    zh: str

    def html(self) -> str:
        """Both, escaped; the page's style shows the one of its language."""
        return self._both("span")

    def svg(self) -> str:
        """As `html`, inside a text of a picture."""
        return self._both("tspan")

    def _both(self, tag: str) -> str:
        if self.en == self.zh:
            return escape(self.en)
        return (
            f'<{tag} class="en" lang="en">{escape(self.en)}</{tag}>'
            f'<{tag} class="zh" lang="zh-Hant-TW">{escape(self.zh)}</{tag}>'
        )


def say(key: str, **values: object) -> Text:
    """A phrase with its blanks filled; a value may be a Text. Raises KeyError for an unknown key
    or a missing value."""
    english, chinese = PHRASES[key]
    return Text(
        english.format(**{name: _in("en", value) for name, value in values.items()}),
        chinese.format(**{name: _in("zh", value) for name, value in values.items()}),
    )


def _in(language: str, value: object) -> object:
    return getattr(value, language) if isinstance(value, Text) else value


def plain(text: object) -> Text:
    """What reads the same in both languages."""
    return Text(str(text), str(text))


def named(kind: str, name: str) -> Text:
    """The phrase for one of a kind (`cause`, `signal`, `status`, ...), or its name as it is."""
    key = f"{kind}_{name.lower().replace(' ', '_')}"
    return say(key) if key in PHRASES else plain(name.replace("_", " "))


def joined(texts: list[Text]) -> Text:
    """One after the other, as a list within a sentence."""
    return Text(", ".join(text.en for text in texts), "、".join(text.zh for text in texts))


def html_language(lang: str) -> str:
    """`zh-TW` -> `zh-Hant-TW`. Raises ConfigError for a language that reports do not speak."""
    if lang not in LANGUAGES:
        raise ConfigError("--lang", lang, f"expected {' or '.join(LANGUAGES)}")
    return LANGUAGES[lang]


def translated(sentence: str) -> Text:
    """A sentence of a document. What nobody has translated stays English in both."""
    for pattern, chinese in _SENTENCES:
        if match := pattern.fullmatch(sentence):
            found = match.groupdict(default="")
            values = {
                name: translated(text).zh if name.startswith("said") else text
                for name, text in found.items()
            }
            return Text(sentence, chinese.format(**values))
    return plain(sentence)


# Numbers.


def milliseconds(seconds: float | None) -> str:
    """Three digits where they mean something, no unit: 0.0873 -> `87.3`; None: nothing."""
    if seconds is None:
        return ""
    if math.isinf(seconds):
        return MISS
    value = seconds * 1e3
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3


def with_unit(seconds: float | None) -> str:
    """`87.3 ms`."""
    text = milliseconds(seconds)
    return text if text in ("", MISS) else f"{text} ms"


def per_second(rate: float | None) -> str:
    """609.8 -> `610`, 0.25 -> `0.25`, no unit; None: nothing."""
    if rate is None:
        return ""
    return f"{rate:,.0f}" if abs(rate) >= 100 else f"{float(f'{rate:.3g}'):g}"


def percent(share: float | None) -> str:
    """0.0123 -> `1.23%`; None: nothing."""
    return "" if share is None else f"{float(f'{share * 100:.3g}'):g}%"


def percentile_in(times: Percentiles, name: str) -> str:
    """`p95` in milliseconds, marked where the sample does not resolve it; nothing when absent."""
    value = getattr(times, name)
    if value is None:
        return MISS if name in times.infinite else ""
    is_percentile = name.startswith("p")
    mark = UNRESOLVED if is_percentile and name not in times.resolved else ""
    return mark + milliseconds(value)


def percentile_name(name: str) -> str:
    """`p99_9` -> `P99.9`."""
    return name.upper().replace("_", ".") if name.startswith("p") else name


PHRASES: dict[str, tuple[str, str]] = {
    # The page.
    "page_title": ("{verdict} · {target}", "{verdict} · {target}"),
    "report_name": ("Load test report", "負載測試報告"),
    "of_target": ("{name} · {target}", "{name} · {target}"),
    "span": ("{low} to {high}", "{low} 至 {high}"),
    "skip": ("Skip to the report", "跳至報告內容"),
    "language": ("Language", "語言"),
    "theme": ("Light or dark", "淺色或深色"),
    "contents": ("Contents", "目錄"),
    "copy": ("Copy", "複製"),
    "copied": ("Copied", "已複製"),
    "name": ("name", "名稱"),
    "chart_data": ("The data of this chart", "此圖的資料"),
    "footer": (
        (
            "Times are in milliseconds, from the intended start of each request unless said "
            "otherwise. Percentiles are nearest ranks over raw values."
        ),
        (
            "時間單位為毫秒；除非另有說明，一律從每個請求預定送出的時刻起算。"
            "百分位數為原始值的最近序位。"
        ),
    ),
    "made_by": ("Made by {tool}", "由 {tool} 產生"),
    "none": ("None.", "無。"),
    "not_recorded": (
        "The requests of this step were not recorded.",
        "此步驟的個別請求沒有紀錄。",
    ),
    # The verdict.
    "verdict": ("Verdict", "判定"),
    "verdict_pass": ("PASS", "通過"),
    "verdict_fail": ("FAIL", "未通過"),
    "verdict_undecided": ("UNDECIDED", "無法判定"),
    "verdict_invalid": ("INVALID", "量測無效"),
    "meaning_pass": ("The SLO is kept.", "符合 SLO。"),
    "meaning_fail": ("The SLO is not kept.", "不符合 SLO。"),
    "meaning_undecided": (
        "The sample does not suffice to say.",
        "樣本不足，無法下結論。",
    ),
    "meaning_invalid": (
        "You are load-testing yourself: the tester was in the number.",
        "測到的是測試工具自己：數字裡混入了測試端的影響。",
    ),
    "slo": ("SLO", "SLO"),
    "required": ("Required: {rate}/s", "要求：每秒 {rate} 個請求"),
    "limit": ("SLO limit", "SLO 上限"),
    "knee": ("Knee", "轉折點"),
    "saturation": ("Saturation", "飽和點"),
    "limit_or_more": ("SLO limit or more", "SLO 上限或更高"),
    "limit_about": ("highest rate inside the SLO", "仍符合 SLO 的最高速率"),
    "knee_about": (
        "latency grows faster than load from here",
        "由此開始，延遲比負載成長得更快",
    ),
    "saturation_about": (
        "no more is answered beyond: the basis for scaling",
        "超過即無法完成更多請求：擴充容量的依據",
    ),
    "limit_between": (
        "PASS up to {low}/s, FAIL from {high}/s",
        "{low}/s 以下通過，{high}/s 起未通過",
    ),
    "limit_passed": (
        "PASS up to {low}/s, no FAIL was seen",
        "{low}/s 以下通過，未見未通過者",
    ),
    "limit_failed": (
        "no PASS was seen, FAIL from {high}/s",
        "未見通過者，{high}/s 起未通過",
    ),
    "limit_at_least": (
        "the tester gave out first: a lower bound",
        "測試端先到極限：此為下界",
    ),
    "interval_95": ("95% interval {low} to {high}", "95% 區間 {low} 至 {high}"),
    "saturation_between": (
        "not overloaded up to {low}/s, overloaded from {high}/s",
        "{low}/s 以下未過載，{high}/s 起過載",
    ),
    "saturation_open": ("not overloaded up to {low}/s", "{low}/s 以下未過載"),
    "not_found": ("not found", "未找到"),
    "at_rate": ("at {rate}/s", "在 {rate}/s"),
    "at_rate_unresolved": (
        "at {rate}/s; too few requests to resolve it",
        "在 {rate}/s；請求太少，無法解析",
    ),
    "at_least": ("at least {rate}", "至少 {rate}"),
    "a_second": ("{rate}/s", "{rate}/s"),
    "see_warnings": (
        "Read first: warnings ({warnings}), unresolved ({unresolved})",
        "請先閱讀：{warnings} 則警告、{unresolved} 項未決",
    ),
    "summary_at": (
        "At {offered}/s offered, {achieved}/s achieved, {requests} requests (step {index})",
        "送出 {offered}/s、達成 {achieved}/s，共 {requests} 個請求（步驟 {index}）",
    ),
    # Advice.
    "advice": ("Advice", "建議"),
    "advice_at": ("{low}/s", "{low}/s"),
    "advice_between": ("{low} to {high}/s", "{low} 至 {high}/s"),
    # Distribution.
    "distribution": ("Distribution of the response time", "回應時間的分布"),
    "histogram_about": (
        "{num} requests. The mean is marked for comparison only: no user feels it.",
        "共 {num} 個請求。平均值僅供對照：沒有使用者感受得到它。",
    ),
    "histogram_title": (
        "How many requests took how long",
        "各回應時間的請求數",
    ),
    "histogram_beyond": (
        "{num} slower, up to {max} ms",
        "另有 {num} 個更慢，最長 {max} ms",
    ),
    "histogram_misses": ("{num} misses", "{num} 個未達"),
    "mean": ("mean", "平均"),
    "max": ("max", "最大"),
    "from_ms": ("from ms", "起 ms"),
    "to_ms": ("to ms", "迄 ms"),
    "requests": ("requests", "請求數"),
    "response_ms": ("response time, ms", "回應時間（ms）"),
    # Percentiles.
    "percentiles": ("Percentiles, corrected and not", "百分位數：校正與未校正"),
    "percentiles_about": (
        (
            "Response time counts from when a request should have left; uncorrected latency from "
            "when it did, as closed-loop tools count. Where the two part, the latter hides waiting."
        ),
        (
            "回應時間從請求應送出的時刻起算；未校正延遲則從實際送出起算，"
            "閉迴路工具即如此計時。兩者分開之處，就是被測試端時鐘藏起來的等待。"
        ),
    ),
    "percentile_title": (
        "Response time by percentile",
        "各百分位數的回應時間",
    ),
    "response": ("response time", "回應時間"),
    "uncorrected": ("uncorrected", "未校正"),
    "closed_loop": (
        "closed loop: {users} users, {rate}/s",
        "閉迴路：{users} 位使用者，{rate}/s",
    ),
    "percentile": ("percentile", "百分位數"),
    "too_few": ("too few requests to resolve", "請求太少，無法解析"),
    "unresolved_mark": (
        (
            "~ the sample is too small to resolve this percentile; no verdict uses it. "
            "miss: its rank falls on a request without a good answer."
        ),
        "~ 樣本太小，無法解析此百分位數，判定不會採用。miss：該序位落在沒有得到正確回應的請求上。",
    ),
    "time": ("time", "時間"),
    "times_in_ms": ("Milliseconds", "毫秒"),
    "span_ms": ("{low} to {high} ms", "{low} 至 {high} ms"),
    "span_open": ("{low} ms and up, without a bound", "{low} ms 以上，無上界"),
    "interval_is": ("95% interval {span}", "95% 區間 {span}"),
    "intervals_are": (
        "95% intervals that allow for requests being late together: {spans}.",
        "考慮請求會一起延遲的 95% 區間：{spans}。",
    ),
    # The curve over rates.
    "rates": ("Latency over load", "延遲與負載"),
    "rates_title": (
        "Response time against offered rate",
        "回應時間與送出速率",
    ),
    "rates_about": (
        (
            "Each mark is a step; its shape is its class. Below: what was achieved of what was "
            "offered, beside the line of all."
        ),
        "每個標記是一個步驟，形狀代表分類。下方為達成與送出速率的比較，斜線代表全部達成。",
    ),
    "offered_axis": ("offered, requests/s", "送出速率（請求/秒）"),
    "achieved_axis": ("achieved, requests/s", "達成速率（請求/秒）"),
    "class_linear": ("LINEAR", "線性"),
    "class_knee": ("KNEE", "轉折"),
    "class_overload": ("OVERLOAD", "過載"),
    "class_invalid": ("INVALID", "量測無效"),
    # The table.
    "points": ("Every step", "所有步驟"),
    "step": ("step", "步驟"),
    "role": ("purpose", "目的"),
    "role_base": ("base", "基準"),
    "role_bracket": ("bracket", "夾出範圍"),
    "role_bisect": ("bisect", "二分"),
    "role_confirm": ("confirm", "確認"),
    "role_curve": ("curve", "曲線"),
    "role_rate": ("asked for", "指定速率"),
    "role_split": ("split", "分送檢驗"),
    "role_replay": ("replay", "重放"),
    "offered": ("offered /s", "送出 /s"),
    "achieved": ("achieved /s", "達成 /s"),
    "errors": ("errors", "錯誤"),
    "refused": ("refused", "拒絕"),
    "class": ("class", "分類"),
    "reason": ("reason", "理由"),
    "why": ("Why each step got its verdict", "各步驟判定的理由"),
    "findings": ("Each SLO at each step", "各步驟的每項 SLO"),
    "misses": ("misses", "未達"),
    "observed": ("observed share", "觀測比例"),
    "allowed": ("allowed", "容許"),
    "bounds": ("95% bounds", "95% 界限"),
    "effective": ("worth independent", "等同獨立樣本"),
    # Over time.
    "timeline": ("Over time", "時間歷程"),
    "timeline_title": (
        "Response time through the step",
        "步驟期間的回應時間",
    ),
    "timeline_about": (
        "P50 and P99 of {num} slices by intended start; below, requests in flight, and misses.",
        "依預定送出時刻切成 {num} 段，各段的 P50 與 P99；下方為處理中的請求數與未達數。",
    ),
    "seconds_axis": ("seconds into the step", "步驟開始後秒數"),
    "in_flight": ("in flight", "處理中"),
    "from_s": ("from s", "起 s"),
    # Cold and warm.
    "cold": ("Cold against warm", "冷啟動與暖機後"),
    "cold_title": ("The first beside the warm", "首次請求與暖機後請求"),
    "cold_first": ("first", "首次"),
    "cold_p": ("cold {name}", "冷 {name}"),
    "warm_p": ("warm {name}", "暖 {name}"),
    "cold_ratio": (
        "The first request took {ratio} times the warm P50.",
        "首次請求是暖機後 P50 的 {ratio} 倍。",
    ),
    "mean_over_both": (
        "A mean over both would have said {mean}.",
        "兩者合併的平均值會是 {mean}。",
    ),
    "mean_of_neither": (
        "A mean over both would have said {mean}: a time that neither kind has.",
        "兩者合併的平均值會是 {mean}：兩種請求都不是這個時間。",
    ),
    "cold_kinds": (
        "{num} requests met something for the first time: {kinds}.",
        "{num} 個請求遇到某種「第一次」：{kinds}。",
    ),
    "cold_count": (
        "{num} requests met something for the first time.",
        "{num} 個請求遇到某種「第一次」。",
    ),
    "kind_count": ("{name} {num}", "{name} {num}"),
    "kind_process": ("process", "程序"),
    "kind_replica": ("replica", "副本"),
    "kind_connection": ("connection", "連線"),
    "kind_idle": ("after idling", "閒置後"),
    "kind_shape": ("shape", "形狀"),
    "no_cold": ("No cold request was told apart.", "沒有辨識出冷請求。"),
    # Causes.
    "causes": ("Causes of the tail", "尾端延遲的原因"),
    "causes_title": (
        "Share of the excess time of the slowest requests",
        "最慢請求超出時間的占比",
    ),
    "cause": ("cause", "原因"),
    "share": ("share", "占比"),
    "interval": ("interval", "區間"),
    "unexplained": ("unexplained", "無法解釋"),
    "primary": ("Primary cause: {cause}.", "主因：{cause}。"),
    "no_primary": (
        "No single cause makes up half of the excess.",
        "沒有任何單一原因占超出時間的一半。",
    ),
    "no_causes": ("The tail was not looked into.", "未分析尾端延遲。"),
    "cause_cold_start": ("cold start", "冷啟動"),
    "cause_gc_or_stall": ("GC or stall", "GC 或停頓"),
    "cause_large_input": ("large input", "大型輸入"),
    "cause_queueing": ("queueing", "排隊"),
    "cause_batch_mates": ("batch mates", "同批請求"),
    "cause_network": ("network", "網路"),
    "cause_replica": ("replica", "副本"),
    "cause_starved_cpu": ("starved CPU", "CPU 不足"),
    "cause_the_generator": ("the generator", "負載產生器"),
    # The generator.
    "generator": ("Was the tester in the number?", "數字裡有沒有測試工具的影響？"),
    "generator_ok": (
        "No: the requests left when they should have.",
        "沒有：請求都在應送出的時刻送出。",
    ),
    "generator_bad": (
        "Yes. These figures say as much about the tester as about the service.",
        "有。這些數字反映的不只是服務，也包含測試工具。",
    ),
    "signals": ("Evidence about the tester", "測試端的證據"),
    "signal": ("signal", "訊號"),
    "value": ("value", "值"),
    "bound": ("limit", "上限"),
    "state": ("state", "狀態"),
    "state_ok": ("in order", "正常"),
    "state_bad": ("conspicuous", "異常"),
    "state_invalid": ("invalidates", "使量測無效"),
    "what_it_says": ("what it says", "說明"),
    "send_lag_row": ("send lag", "送出延遲"),
    "own_lag_row": ("caused by the tester", "測試端造成"),
    "signal_send_lag": ("send lag", "送出延遲"),
    "signal_starved": ("starved", "搶不到核心"),
    "signal_shortfall": ("shortfall", "送出短缺"),
    "signal_arrivals": ("arrivals", "到達間隔"),
    "signal_client_cpu": ("client CPU", "測試端 CPU"),
    "signal_foreign_cpu": ("foreign CPU", "其他程序的 CPU"),
    "signal_loop_lag": ("loop lag", "事件迴圈延遲"),
    "signal_round_trip": ("round trip", "往返時間"),
    "signal_same_host": ("same host", "同一台主機"),
    "signal_steal": ("steal", "被虛擬化主機取走的 CPU"),
    "signal_connection_cap": ("connection cap", "連線上限"),
    "signal_gc_pause": ("GC pause", "GC 停頓"),
    "signal_run_queue": ("run queue", "等待核心"),
    "signal_involuntary_switches": ("involuntary switches", "被迫讓出核心"),
    "signal_network": ("network", "網路"),
    "signal_idle_server": ("idle server", "閒置的伺服器"),
    "signal_ceiling": ("ceiling", "測試端極限"),
    "signal_null_calibration": ("null calibration", "空目標校準"),
    "signal_split": ("split test", "分送檢驗"),
    "signal_split_test": ("split test", "分送檢驗"),
    "signal_sockets": ("sockets", "通訊端"),
    # Errors.
    "own_errors": ("Errors", "錯誤"),
    "by_status": ("By status", "依狀態"),
    "no_errors": (
        "Every request of every step got a good answer.",
        "每個步驟的每個請求都得到正確回應。",
    ),
    "status_unanswered": ("unanswered", "未回應"),
    "status_lost": ("connection lost", "連線中斷"),
    "status_not_connected": ("not connected", "無法連線"),
    "status_no_socket": ("no socket", "通訊端不足"),
    "status_unsent": ("unsent", "未送出"),
    "status_timed_out": ("timed out", "逾時"),
    "status_not_http": ("not HTTP", "非 HTTP"),
    # Environment.
    "environment": ("Environment", "環境"),
    "no_environment": ("Not recorded.", "沒有紀錄。"),
    "fact_date": ("date", "日期"),
    "fact_cpu": ("CPU", "CPU"),
    "fact_cores": ("cores", "核心"),
    "cores_of": ("{allowed} of {cores} may be used", "{cores} 個，可用 {allowed} 個"),
    "fact_governor": ("frequency governor", "頻率調節"),
    "fact_memory": ("memory", "記憶體"),
    "fact_kernel": ("kernel", "核心版本"),
    "fact_python": ("Python", "Python"),
    "fact_versions": ("versions", "套件版本"),
    "fact_same_host": ("tester and target", "測試端與目標"),
    "same_host": ("on one host", "在同一台主機"),
    "other_host": ("on different hosts", "在不同主機"),
    "fact_processes": ("senders", "送出程序"),
    "fact_seeds": ("seeds", "亂數種子"),
    "fact_payload": ("payload", "請求內容"),
    "fact_seconds": ("duration", "耗時"),
    "fact_run": ("recorded in", "紀錄位置"),
    # Confidence.
    "confidence": ("How often this verdict errs", "此判定的錯誤率"),
    "confidence_about": (
        "Calibrated on simulated queues whose true percentiles are known.",
        "以真實百分位數已知的模擬佇列校準而得。",
    ),
    "errs_false_pass": ("PASS, though the SLO is broken", "不符 SLO 卻判為通過"),
    "errs_false_pass_at": ("there the SLO is at", "此時 SLO 設於"),
    "errs_pass_on_the_limit": ("PASS, exactly on the limit", "恰在界限上而判為通過"),
    "errs_power": ("PASS, and the SLO is kept", "符合 SLO 且判為通過"),
    "errs_power_at": ("there the SLO is at", "此時 SLO 設於"),
    "errs_measured_on": ("measured on", "量測對象"),
    "errs_runs": ("runs", "次數"),
    "errs_more_in": ("more in", "詳見"),
    # Warnings.
    "warnings": ("Warnings and what is unresolved", "警告與未決事項"),
    "warning": ("Warning", "警告"),
    "unresolved": ("Unresolved", "未決"),
    # The command.
    "command": ("Run it again", "重新執行"),
    # Probe.
    "probe_name": ("Probe", "探測"),
    "probe_heading": (
        "Cold {cold}, warm P50 {warm}",
        "冷啟動 {cold}，暖機後 P50 {warm}",
    ),
    "no_answer": ("no answer", "沒有回應"),
    "probe_about": (
        (
            "One request after the other on one connection: what a lone user feels, not what the "
            "service bears."
        ),
        "在同一條連線上逐一送出：這是單一使用者的感受，不是服務的承載能力。",
    ),
    "probe_requests": ("Every request, in order", "依序的每個請求"),
    "probe_sequence": ("Response time of each request", "每個請求的回應時間"),
    "request_number": ("request", "第幾個請求"),
    "counters": ("Counters of the service", "服務的計數器"),
    "counter": ("counter", "計數器"),
    "increase": ("increase", "增加"),
}
"""Id -> (English, Chinese of Taiwan)."""


def _sentence(pattern: str, chinese: str) -> tuple[re.Pattern[str], str]:
    """Groups named `said...` hold a sentence that is translated itself."""
    return re.compile(pattern, re.DOTALL), chinese


_RATE = r"[\d.,]+/s"

_SENTENCES = tuple(
    _sentence(pattern, chinese)
    for pattern, chinese in (
        # Advice.
        ("keep loading", "繼續加載"),
        (
            "load is not why the SLO breaks: look at the service itself and its errors",
            "SLO 不符並非負載所致：請檢查服務本身與錯誤",
        ),
        (
            "keep loading, in small steps: latency now grows faster than load",
            "以小步繼續加載：延遲已比負載成長得更快",
        ),
        ("the SLO belongs before this point", "SLO 的運作點應在此之前"),
        ("the SLO belongs near this point", "SLO 的運作點應在此附近"),
        ("this is the capacity, the basis for scaling", "這就是容量，也是擴充的依據"),
        (
            (
                "this is the capacity, the basis for scaling; warning: the SLO breaks only beyond "
                "saturation, so it does not protect the service"
            ),
            "這就是容量，也是擴充的依據；警告：SLO 直到飽和之後才不符，因此保護不了服務",
        ),
        ("look at the tester first: it is in the number", "請先檢查測試端：它已混入數字"),
        ("this rate is inside the SLO", "這個速率在 SLO 之內"),
        ("this rate is outside the SLO", "這個速率在 SLO 之外"),
        ("undecided: needs a longer step", "尚無法判定：需要更長的步驟"),
        (
            "(?P<said>.+); undecided: needs a longer step",
            "{said}；尚無法判定：需要更長的步驟",
        ),
        (
            r"(?P<said>.+); undecided: needs about (?P<num>[\d,]+) more",
            "{said}；尚無法判定：約需再 {num} 個請求",
        ),
        # Outcomes of a whole run.
        (
            rf"(?P<b>{_RATE}) passed, (?P<c>{_RATE}) failed: the limit is about (?P<a>{_RATE})",
            "{b} 通過，{c} 未通過：極限約為 {a}",
        ),
        (
            (rf"(?P<said>.+), but no repeat confirmed (?P<a>{_RATE}): give it more --budget"),
            "{said}；但沒有任何重複步驟證實 {a}：請給更多 --budget",
        ),
        (
            rf"(?P<a>{_RATE}) failed, and no lower rate was decided: give it more time",
            "{a} 未通過，更低的速率都未能判定：請給更多時間",
        ),
        (r"holds at each of (?P<num>\d+) rates", "{num} 個速率都維持住了"),
        (
            rf"holds at least (?P<a>{_RATE}); no higher rate was decided",
            "至少可維持到 {a}；更高的速率都未能判定",
        ),
        (
            rf"holds at least (?P<a>{_RATE}); above that, (?P<said>.+)",
            "至少可維持到 {a}；超過之後，{said}",
        ),
        (rf"not even (?P<a>{_RATE}) holds: (?P<said>.+)", "連 {a} 都無法維持：{said}"),
        ("the budget did not suffice to decide any rate", "預算不足，無法判定任何速率"),
        ("no request was measured", "沒有量測到任何請求"),
        # Verdicts on one SLO.
        (
            (
                r"(?P<said>P[\d.]+ was .+), at most (?P<a>\S+%) may be; "
                r"with (?P<b>\S+%) confidence (?P<said2>.+)"
            ),
            "{said}，最多容許 {a}；信賴水準 {b} 下{said2}",
        ),
        (
            (
                r"(?P<said>\S+% of [\d,]+ requests got no good answer), at most (?P<a>\S+%) may "
                r"be; with (?P<b>\S+%) confidence (?P<said2>.+)"
            ),
            "{said}，最多容許 {a}；信賴水準 {b} 下{said2}",
        ),
        (
            (
                r"(?P<said>\S+% of [\d,]+ requests got no good answer), at most (?P<a>\S+%) may be "
                r"\(no availability was declared\)"
            ),
            "{said}，最多容許 {a}（未宣告可用性）",
        ),
        (
            r"(?P<a>P[\d.]+) was a miss: (?P<c>\S+%) of (?P<d>[\d,]+) requests were late.*",
            "{a} 落在未達的請求上：{d} 個請求中有 {c} 太晚或失敗",
        ),
        (
            r"(?P<a>P[\d.]+) was (?P<b>\S+): (?P<c>\S+%) of (?P<d>[\d,]+) requests were late",
            "{a} 為 {b}：{d} 個請求中有 {c} 太晚",
        ),
        (
            (
                r"(?P<a>P[\d.]+) was (?P<b>\S+): (?P<c>\S+%) of (?P<d>[\d,]+) requests were late"
                r" or failed \((?P<e>[\d,]+) failed\)"
            ),
            "{a} 為 {b}：{d} 個請求中有 {c} 太晚或失敗（失敗 {e} 個）",
        ),
        (
            r"(?P<a>\S+%) of (?P<b>[\d,]+) requests got no good answer",
            "{b} 個請求中有 {a} 沒有得到正確回應",
        ),
        (r"at most (?P<a>\S+%)", "至多 {a}"),
        (r"at least (?P<a>\S+%)", "至少 {a}"),
        (
            r"(?P<a>\S+%) to (?P<b>\S+%); about (?P<c>[\d,]+) more requests would decide.*",
            "介於 {a} 至 {b}；約再 {c} 個請求即可判定",
        ),
        (
            r"(?P<a>\S+%) to (?P<b>\S+%); the service is too close to the limit to tell.*",
            "介於 {a} 至 {b}；服務太接近界限，無法分辨",
        ),
        # What a search left open.
        (rf"the tester gave out at (?P<a>{_RATE})", "測試端在 {a} 已達極限"),
        (rf"no rate failed up to (?P<a>{_RATE})", "到 {a} 為止沒有未通過的速率"),
        (
            rf"no rate passed below (?P<a>{_RATE}): more time is needed",
            "低於 {a} 沒有通過的速率：需要更多時間",
        ),
        (
            rf"between (?P<a>{_RATE}) and (?P<b>{_RATE}) the SLO is undecided",
            "{a} 與 {b} 之間無法判定是否符合 SLO",
        ),
        (
            (
                rf"bimodal: (?P<a>{_RATE}) passed above (?P<b>{_RATE}), which failed; "
                "the lower one is kept"
            ),
            "雙峰：{a} 通過，較低的 {b} 卻未通過；採用較低者",
        ),
        (rf"(?P<a>{_RATE}) was not repeated", "{a} 沒有重複量測"),
        (rf"no overload was seen up to (?P<a>{_RATE})", "到 {a} 為止未見過載"),
        (r"the latency curve has only (?P<a>\d+) points", "延遲曲線只有 {a} 個點"),
        # The tester.
        ("you are load-testing yourself: (?P<said>.+)", "測到的是測試工具自己：{said}"),
        (
            r"requests left on time \(P99 of the send lag (?P<a>\S+)\)",
            "請求準時送出（送出延遲 P99 為 {a}）",
        ),
        (
            r"the tester sent late \(P99 of it is (?P<a>\S+), at most (?P<b>\S+) may be\); .+",
            "測試端送出太晚（P99 為 {a}，最多容許 {b}）：請增加 --processes、降速或改用專用機器",
        ),
        ("there was a socket for every request", "每個請求都有可用的通訊端"),
        ("no cap on connections held requests back", "沒有連線上限擋住請求"),
        (
            r"(?P<a>\S+%) of the planned requests left inside the window",
            "預定請求中有 {a} 在時窗內送出",
        ),
        (
            r"only (?P<a>\S+%) of the planned requests left in time: .+",
            "預定請求中只有 {a} 準時送出：測試端無法送出這個速率",
        ),
        (
            "tester and server run on one machine .*: test from another one to be sure",
            "測試端與伺服器在同一台機器上：請改由另一台機器測試以求確定",
        ),
        ("requests left in the planned pattern", "請求依預定的間隔送出"),
        (
            (
                r"others( \(the server may be among them\))? used (?P<a>\S+%) of the tester's cores"
                "(: stop them.*)?"
            ),
            "其他程序（伺服器可能也在其中）用了測試端核心的 {a}",
        ),
        ("the hypervisor took no time away", "虛擬化主機沒有取走 CPU 時間"),
        (r"the busiest sender used (?P<a>\S+%) of a core", "最忙的送出程序用了一個核心的 {a}"),
        (
            r"a sender used (?P<a>\S+%) of a core: use more --processes",
            "有送出程序用了一個核心的 {a}：請增加 --processes",
        ),
        ("the tester's collector did not stop it for long", "測試端的垃圾回收沒有讓它停頓太久"),
        ("senders ran as soon as they were ready", "送出程序一就緒即可執行"),
        ("senders were not driven off their cores", "送出程序沒有被擠下核心"),
        ("senders woke on time", "送出程序準時醒來"),
        (r"a new connection took (?P<a>\d\S*)", "建立新連線花了 {a}"),
        ("a new connection took no time", "沒有建立新連線"),
        (r"the server used (?P<a>\S+) cores", "伺服器用了 {a} 個核心"),
        (
            rf"the tester can send (?P<a>{_RATE}), the test used (?P<b>\S+%) of that",
            "測試端最多可送出 {a}，此測試用了其中的 {b}",
        ),
        (
            (
                rf"against a target that does nothing the tester kept (?P<a>{_RATE}), "
                r"(?P<b>\S+) times the limit \(.+\)"
            ),
            "對著什麼都不做的目標，測試端可維持 {a}，為上限的 {b} 倍",
        ),
        # Causes of a tail.
        (
            "they waited for the requests ahead of them: more machines, or a lower rate",
            "它們在等前面的請求：增加機器，或降低速率",
        ),
        (
            "they shared their batch with more rows than usual: smaller batches, or more machines",
            "同批的資料列比平常多：縮小批次，或增加機器",
        ),
        (
            "the server had them and did not work on them: its front was busy or had no core",
            "伺服器已收到卻沒有處理：前端忙碌，或沒有可用核心",
        ),
        (
            "the time passed between tester and server: connections, sockets, the network",
            "時間花在測試端與伺服器之間：連線、通訊端、網路",
        ),
        (
            "the tester (sent them late|stood still): see the generator's signals",
            "是測試端造成的：請看測試端的證據",
        ),
    )
)
"""Sentences that our own code writes; the first that fits is taken."""
